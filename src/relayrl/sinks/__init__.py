"""Where trajectories are kept and read back from: files, databases, memory."""
