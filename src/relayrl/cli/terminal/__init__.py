"""What commands need of the terminal: how they were started, and runs on the screen."""
