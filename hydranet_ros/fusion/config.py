"""The configuration of the fusion: what is believed of each source before it is heard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hydranet_ros.settings import Configuration, setting

KERNELS = ("none", "huber", "cauchy")


@dataclass(frozen=True)
class FusionConfig(Configuration):
    """What the sliding window assumes.

    The network's errors are not white: over 100 frames they average out 2 to 4 times more slowly
    than independent ones would, grow with the rotation in turns, and keep a bias. Taken as it is,
    a network covariance would outweigh visual odometry where that is better. Hence the inflation,
    the scale noise and the bias state.
    """

    window_size: int = setting(10, "states in the window", 3)
    max_iterations: int = setting(10, "most steps of one optimisation", 1)
    stamp_tolerance_s: float = setting(0.0001, "stamps this close are the same state")
    max_gap_s: float = setting(2.0, "longest time that the last velocity is carried on", 0.001)

    vo_scale: float = setting(4.0, "factor on VO covariances, which are over-confident", 1e-09)
    vo_floor_m: float = setting(0.03, "least standard deviation of a VO translation")
    vo_floor_deg: float = setting(0.03, "least standard deviation of a VO rotation")
    vo_kernel: Literal["none", "huber", "cauchy"] = setting("huber", "robust kernel of VO edges")

    rotation_floor_deg: float = setting(0.005, "least standard deviation of a network rotation")
    rotation_inflation: float = setting(
        16.0, "factor on network covariances, because errors are correlated in time", 1
    )
    rotation_scale_noise: float = setting(
        0.5, "standard deviation per rotation angle, for errors in turns"
    )
    rotation_kernel: Literal["none", "huber", "cauchy"] = setting(
        "huber", "robust kernel of rotation edges"
    )
    kernel_sigma: float = setting(
        4.0, "where a robust kernel sets in, in standard deviations", 0.1
    )

    estimate_bias: bool = setting(True, "estimate the network's bias")
    bias_sigma_deg_s: float = setting(
        0.3, "standard deviation of the bias before it is observed", 1e-09
    )
    bias_walk_deg_s: float = setting(
        0.06, "random walk of the bias, per square root of a second", 1e-09
    )

    acceleration: float = setting(3.0, "random walk of the velocity, m/s per root second", 1e-06)
    angular_acceleration_deg: float = setting(
        20.0, "random walk of the turn rate, deg/s per root second", 1e-06
    )

    gate_probability: float = setting(
        1e-06, "chance that an honest measurement is rejected", 1e-15, 1.0
    )
    max_consecutive_rejections: int = setting(
        10, "after so many rejections of a source, it is believed again", 1
    )

    def validate(self) -> None:
        """Check what no field can tell alone."""
        if self.gate_probability == 1.0:
            raise ValueError("gate_probability must be below 1, or nothing is believed")
