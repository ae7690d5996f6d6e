"""Environments: the contract, adapters to other libraries, and vectorisation in this process or in workers."""
