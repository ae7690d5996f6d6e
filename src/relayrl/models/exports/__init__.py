"""Policies as files, and what is recognised in them."""
