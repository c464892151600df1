"""Poses, cameras, estimates with covariance, trajectories and their errors."""
