"""Rotation from a camera with a covariance you can trust, and its fusion with visual odometry."""

__version__ = "0.1.0"
