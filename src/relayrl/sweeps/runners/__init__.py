"""Where the runs of a sweep are placed: plain processes, or a Ray cluster."""
