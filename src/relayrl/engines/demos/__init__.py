"""Recording demonstrations: whole episodes of a trained policy, or of a person at the keyboard."""
