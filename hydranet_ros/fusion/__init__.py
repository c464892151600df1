"""Fusion of visual odometry with learned rotations: the paper's, and a sliding window."""

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.pairwise import relax_pairs
from hydranet_ros.fusion.sliding_window import FusedState, Rejection, SlidingWindowFusion

__all__ = ["FusedState", "FusionConfig", "Rejection", "SlidingWindowFusion", "relax_pairs"]
