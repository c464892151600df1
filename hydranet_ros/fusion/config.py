"""The configuration of the fusion: what is believed of each source, and how long it is awaited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hydranet_ros.fusion.calibration import CalibrationConfig
from hydranet_ros.fusion.error_models import OdometryModel, RotationModel
from hydranet_ros.fusion.imu import ImuConfig
from hydranet_ros.settings import Configuration, section, setting

KernelName = Literal["none", "huber", "cauchy"]


@dataclass(frozen=True)
class FusionConfig(Configuration):
    """What the fusion assumes.

    `odometry` chooses one of the models own, visual and wheels, and `rotation` one of gyro and
    hydranet.
    """

    odometry: Literal["own", "visual", "wheels"] = setting(
        "visual", "whose odometry is fused: our own, somebody's visual odometry, or wheels"
    )
    rotation: Literal["auto", "gyro", "hydranet"] = setting(
        "auto",
        "whose rotations are fused: our gyro's, or those of the paper's network; auto: as a "
        "recording says, and our gyro's where there is none",
    )
    window_size: int = setting(10, "states in the window", 3)
    window_s: float = setting(
        2.0, "seconds that the window spans instead, where odometry has its own rate", 0.1, 60.0
    )
    state_rate_hz: float = setting(
        20.0, "most states a second, where odometry has its own rate", 1.0, 100.0
    )
    max_iterations: int = setting(10, "most steps of one optimisation", 1)
    stamp_tolerance_s: float = setting(1e-4, "stamps this close are the same state")
    max_wait_s: float = setting(
        0.5, "how long a measurement waits for the other source of its interval", 0.0, 3600.0
    )
    max_gap_s: float = setting(2.0, "longest time that the last velocity is carried on", 1e-3)

    own: OdometryModel = section(
        OdometryModel, scale=1.0, floor_m=0.0, floor_deg=0.0, step_share=0.045
    )
    visual: OdometryModel = section(OdometryModel, drift_deg_s=0.11, step_share=0.16)
    wheels: OdometryModel = section(
        OdometryModel,
        scale=1.0,
        floor_m=0.005,
        floor_deg=0.02,
        turn_share=0.03,
        distance_share=0.02,
    )
    gyro: RotationModel = section(RotationModel, step_share=0.16)
    gyro_beside_own: RotationModel = section(RotationModel, inflation=16.0, step_share=0.045)
    hydranet: RotationModel = section(
        RotationModel, inflation=16.0, scale_noise=0.5, bias_sigma_deg_s=0.3, step_share=0.16
    )
    planar: bool = setting(
        True, "wheels roll on ground: z, roll and pitch are held softly, slopes allowed"
    )
    calibration: CalibrationConfig = section(CalibrationConfig)
    imu: ImuConfig = section(ImuConfig)
    odometry_kernel: KernelName = setting("huber", "robust kernel of odometry edges")
    rotation_kernel: KernelName = setting("huber", "robust kernel of rotation edges")
    kernel_sigma: float = setting(
        4.0, "where a robust kernel sets in, in standard deviations", 0.1
    )

    estimate_bias: bool = setting(
        True, "estimate the bias of the rotation rate, where the model of the rotations has one"
    )

    hold_still: bool = setting(True, "hold the pose while the vehicle is known to stand")
    acceleration: float = setting(3.0, "random walk of the velocity, m/s per root second", 1e-6)
    angular_acceleration_deg: float = setting(
        20.0, "random walk of the turn rate, deg/s per root second", 1e-6
    )

    gate_probability: float = setting(
        1e-6, "chance that an honest measurement is rejected", 1e-15, 0.999
    )
    max_consecutive_rejections: int = setting(
        10, "after so many rejections of a source, it is believed again", 1
    )

    @property
    def odometry_model(self) -> OdometryModel:
        """The one that `odometry` chooses."""
        return {"own": self.own, "visual": self.visual, "wheels": self.wheels}[self.odometry]

    @property
    def rotation_model(self) -> RotationModel:
        """The one that `rotation` chooses."""
        if self.rotation == "hydranet":
            return self.hydranet
        return self.gyro_beside_own if self.odometry == "own" else self.gyro

    @property
    def with_bias(self) -> bool:
        """Whether the window has states of the bias."""
        return self.estimate_bias and self.rotation_model.bias_sigma_deg_s > 0.0

    @property
    def with_scales(self) -> bool:
        """Whether the window has states of the errors of scale."""
        return self.calibration.wheels and self.odometry == "wheels"

    @property
    def own_rates(self) -> bool:
        """Whether odometry is preintegrated between rotations, instead of paired with them."""
        return self.odometry == "wheels"

    @property
    def most_states(self) -> int:
        """The window never holds more."""
        if not self.own_rates:
            return self.window_size
        return max(3, round(self.window_s * self.state_rate_hz))
