"""What training writes and reads: checkpoints, saves, and files that are there whole or not at all."""
