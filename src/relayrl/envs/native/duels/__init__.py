"""Two teams against each other: what one wins, the other loses."""
