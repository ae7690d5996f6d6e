"""From single environments to vector environments: the loops, their buffers, and what is checked and guarded on the way."""
