"""Reward signals: what is added to the environment's rewards before anything is learned from them."""
