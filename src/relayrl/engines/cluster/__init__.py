"""The engine of a Ray cluster: collectors are Ray actors, each with a part of the environments; the learner is this process."""
