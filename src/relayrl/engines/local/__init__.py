"""The engine of one process: builds the parts of a run, and drives them to its end."""
