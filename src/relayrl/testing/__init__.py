"""Public toy environments, example trajectories and contract suites. Only the command line imports it, for `check-env`."""
