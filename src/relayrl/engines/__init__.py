"""Beginning and driving whole runs: sessions, settings, run directories, and the engine that places the parts."""
