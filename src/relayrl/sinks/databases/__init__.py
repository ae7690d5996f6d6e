"""Sinks that write into SQLite and PostgreSQL."""
