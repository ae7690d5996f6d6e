"""Action distributions: what the outputs of a policy's network mean."""
