"""Users' callbacks, and the live run that they are given."""
