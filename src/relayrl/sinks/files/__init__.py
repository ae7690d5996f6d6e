"""Sinks that write part files: Arrow, Parquet, CSV."""
