"""Losses, on their way to training."""
