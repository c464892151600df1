"""The configuration of the fusion: what is believed of each source before it is heard."""

from __future__ import annotations

from dataclasses import dataclass, field

from hydranet_ros.settings import about, check

KERNELS = ("none", "huber", "cauchy")


@dataclass(frozen=True)
class FusionConfig:
    """What the sliding window assumes.

    The network's errors are not white: over 100 frames they average out 2 to 4 times more slowly
    than independent ones would, grow with the rotation in turns, and keep a bias. Taken as it is,
    a network covariance would outweigh visual odometry where that is better. Hence the inflation,
    the scale noise and the bias state.
    """

    window_size: int = field(default=10, metadata=about("states in the window", 3))
    max_iterations: int = field(default=10, metadata=about("most steps of one optimisation", 1))
    stamp_tolerance_s: float = field(
        default=1e-4, metadata=about("stamps this close are the same state")
    )
    max_gap_s: float = field(
        default=2.0, metadata=about("longest time that the last velocity is carried on", 1e-3)
    )

    vo_scale: float = field(
        default=4.0, metadata=about("factor on VO covariances, which are over-confident", 1e-9)
    )
    vo_floor_m: float = field(
        default=0.03, metadata=about("least standard deviation of a VO translation")
    )
    vo_floor_deg: float = field(
        default=0.03, metadata=about("least standard deviation of a VO rotation")
    )
    vo_kernel: str = field(
        default="huber", metadata=about("robust kernel of VO edges", choices=KERNELS)
    )

    rotation_floor_deg: float = field(
        default=0.005, metadata=about("least standard deviation of a network rotation")
    )
    rotation_inflation: float = field(
        default=16.0,
        metadata=about("factor on network covariances, because errors are correlated in time", 1),
    )
    rotation_scale_noise: float = field(
        default=0.5, metadata=about("standard deviation per rotation angle, for errors in turns")
    )
    rotation_kernel: str = field(
        default="huber", metadata=about("robust kernel of rotation edges", choices=KERNELS)
    )
    kernel_sigma: float = field(
        default=4.0, metadata=about("where a robust kernel sets in, in standard deviations", 0.1)
    )

    estimate_bias: bool = field(default=True, metadata=about("estimate the network's bias"))
    bias_sigma_deg_s: float = field(
        default=0.3, metadata=about("standard deviation of the bias before it is observed", 1e-9)
    )
    bias_walk_deg_s: float = field(
        default=0.06, metadata=about("random walk of the bias, per square root of a second", 1e-9)
    )

    acceleration: float = field(
        default=3.0, metadata=about("random walk of the velocity, m/s per root second", 1e-6)
    )
    angular_acceleration_deg: float = field(
        default=20.0, metadata=about("random walk of the turn rate, deg/s per root second", 1e-6)
    )

    gate_probability: float = field(
        default=1e-6, metadata=about("chance that an honest measurement is rejected", 1e-15, 1.0)
    )
    max_consecutive_rejections: int = field(
        default=10, metadata=about("after so many rejections of a source, it is believed again", 1)
    )

    def __post_init__(self) -> None:
        check(self)
        if self.gate_probability == 1.0:
            raise ValueError("gate_probability must be below 1, or nothing is believed")
