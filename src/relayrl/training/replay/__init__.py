"""Replay: the ring of transitions that off-policy trainers learn from."""
