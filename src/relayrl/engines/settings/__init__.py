"""Settings of a whole run: where they come from, presets, and their schema."""
