"""Environments of other libraries' conventions, turned into what RelayRL runs."""
