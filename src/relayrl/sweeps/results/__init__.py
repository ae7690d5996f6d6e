"""What a sweep ends in: a table, a picture, and the best settings as a file."""
