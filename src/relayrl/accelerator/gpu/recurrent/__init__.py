"""The time loops of recurrent cells, forward and backward, in one launch each."""
