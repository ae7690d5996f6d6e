"""Commands around demonstrations."""
