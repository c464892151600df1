"""Fusion of visual odometry with learned rotations: the paper's, and a sliding window."""

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.online import FusedState, Rejection, SlidingWindowFusion
from hydranet_ros.fusion.pairwise import relax_pairs

__all__ = ["FusedState", "FusionConfig", "Rejection", "SlidingWindowFusion", "relax_pairs"]
