"""Training: pairs of images with known rotations in, a weights file out."""
