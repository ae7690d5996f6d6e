"""The inference server: models and versions side by side, batched requests, canaries and their rollback."""
