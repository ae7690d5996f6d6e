"""What turns data into better parameters: returns and losses as pure functions, one file per algorithm."""
