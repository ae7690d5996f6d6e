"""Networks that no single program holds: layer by layer."""
