"""Where a run's parts are placed: this process."""
