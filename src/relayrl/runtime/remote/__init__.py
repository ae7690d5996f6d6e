"""Actors of a training server: the spool, the link to the server, the models they follow, and the loop that plays."""
