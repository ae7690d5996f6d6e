"""Convolutions of images, forward and backward, as matrix products of patches that are never written down."""
