"""Several learners: processes that take the gradient steps of an update together."""
