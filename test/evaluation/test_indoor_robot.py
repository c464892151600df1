"""data/robot: wheels, one camera, and an IMU that is given to the fusion or only compared with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from hydranet_ros.datasets.imu import read_imu
from hydranet_ros.datasets.source import open_source
from hydranet_ros.datasets.wheels import WheelsConfig, read_odometry
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.error_models import hold_to_ground
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.fusion.imu import ImuSample
from hydranet_ros.geometry.camera import Camera
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.gyro.visual_gyro import VisualGyro
from hydranet_ros.pipeline import PipelineConfig
from hydranet_ros.settings import read_yaml, update

pytestmark = pytest.mark.slow


class Robot:
    """Everything that was recorded, in the axes of the camera."""

    def __init__(self, folder: Path) -> None:
        settings = ROOT / "benchmarks" / "indoor_robot.yaml"
        self.config = update(PipelineConfig(), read_yaml(settings))
        wheels: WheelsConfig = self.config.wheels
        self.C_b_c = wheels.T_b_c[:3, :3]
        found = read_odometry(folder / "wheel.csv", wheels)
        self.wheels = [hold_to_ground(motion, wheels.up_c) for motion in found]
        self.imu = read_imu(folder / "imu.csv", self.C_b_c.T)
        camera = ROOT / "benchmarks" / "indoor_robot_camera.yaml"
        source = open_source(str(folder), cameras="mono", camera=camera)
        assert isinstance(source.camera, Camera)
        gyro = VisualGyro(source.camera)
        turned = [gyro.update(frame) for frame in source]
        self.rotations = [each for each in turned if each is not None]
        self.begin, self.end = int(source.stamps_ns[0]), int(source.stamps_ns[-1])

    def imu_yaw(self, stamps: np.ndarray) -> np.ndarray:
        """Yaw of the IMU's gyro, its bias from the first 3 s of standing, as data/README says."""
        times = np.array([sample.stamp_ns for sample in self.imu])
        rates = np.array([sample.rate for sample in self.imu]) @ self.C_b_c[2]
        rates -= rates[times < times[0] + 3_000_000_000].mean()
        turned = 0.5 * (rates[1:] + rates[:-1]) * np.diff(times) * 1e-9
        return np.interp(stamps, times, np.concatenate([[0.0], np.cumsum(turned)]))

    def yaw(self, C_w_c: np.ndarray) -> np.ndarray:
        C = self.C_b_c @ (C_w_c[0].T @ C_w_c) @ self.C_b_c.T
        return np.unwrap(np.arctan2(C[:, 1, 0], C[:, 0, 0]))

    def errors(self, stamps: np.ndarray, C_w_c: np.ndarray) -> np.ndarray:
        true = self.imu_yaw(stamps)
        return self.yaw(C_w_c) - (true - true[0])

    def fused(
        self, config: FusionConfig, begin: int, end: int, with_imu: bool
    ) -> list[FusedState]:
        """The states of the frames between two stamps; wheels and IMU go on from their start."""
        events: list[tuple[int, int, RelativePose | RelativeRotation | ImuSample]] = [
            *((each.stamp_2_ns, 1, each) for each in self.wheels if each.stamp_2_ns <= end),
            *((each.stamp_ns - 20_000_000, 0, each) for each in self.imu if with_imu),
            *(
                (each.stamp_2_ns + 100_000_000, 2, each)
                for each in self.rotations
                if begin <= each.stamp_1_ns and each.stamp_2_ns <= end
            ),
        ]
        fusion, states = Fusion(config), {}
        for _, _, each in sorted(events, key=lambda event: event[:2]):
            if isinstance(each, ImuSample):
                fusion.add_imu(each, np.eye(3))
                continue
            for state in fusion.add(each):
                states[state.stamp_ns] = state
        return [states[stamp] for stamp in sorted(states) if begin <= stamp <= end]


@pytest.fixture(scope="module")
def robot(data: Path) -> Robot:
    return Robot(data / "robot")


@pytest.fixture(scope="module")
def config(robot: Robot) -> FusionConfig:
    """As `hydranet run` has it: a track that was measured in turns, a camera that nobody did."""
    calibration = FusionConfig().calibration
    calibration = replace(
        calibration,
        yaw_sigma=robot.config.wheels.track_sigma,
        gyro_sigma=calibration.nominal_sigma,
    )
    return FusionConfig(odometry="wheels", calibration=calibration)


def test_fused_yaw_is_better_than_either_source(robot: Robot, config: FusionConfig) -> None:
    states = robot.fused(config, robot.begin, robot.end, with_imu=False)
    stamps = np.array([state.stamp_ns for state in states])
    fused = robot.errors(stamps, np.array([state.T_w_c[:3, :3] for state in states]))
    inside = [each for each in robot.wheels if robot.begin <= each.stamp_1_ns]
    C, wheels = np.eye(3), [np.eye(3)]
    for each in inside:
        C = C @ each.T_2_1[:3, :3].T
        wheels.append(C)
    times = np.array([inside[0].stamp_1_ns, *(each.stamp_2_ns for each in inside)])
    shown = times <= robot.end
    alone = robot.errors(times[shown], np.array(wheels)[shown])
    rms = [float(np.sqrt(np.mean(each**2))) for each in (fused, alone)]
    assert rms[0] < 0.9 * rms[1], np.rad2deg(rms)


def test_with_the_imu_the_scales_are_found(robot: Robot, config: FusionConfig) -> None:
    middle = (robot.begin + robot.end) // 2
    found, sigmas = [], []
    for begin, end in ((robot.begin, middle), (middle, robot.end)):
        states = robot.fused(config, begin, end, with_imu=True)
        assert states[-1].Sigma_scales is not None
        found.append(states[-1].scales[:2])
        sigmas.append(np.sqrt(np.diagonal(states[-1].Sigma_scales)[:2]))
    assert np.abs(found[0] - found[1]).max() < 0.02
    # The focal length is 4 % too short. The second half begins in a turn, and the images are
    # stamped late: it has 2.2 +- 0.9 %.
    focal, sigma = np.array(found)[:, 0], np.array(sigmas)[:, 0]
    assert (np.abs(focal - 0.04) < 2.5 * sigma).all()
    assert (sigma < 0.015).all()


def test_with_the_imu_yaw_is_known_as_well_as_it_is_said(
    robot: Robot, config: FusionConfig
) -> None:
    states = robot.fused(config, robot.begin, robot.end, with_imu=True)
    stamps = np.array([state.stamp_ns for state in states])
    error = robot.errors(stamps, np.array([state.T_w_c[:3, :3] for state in states]))
    # Since the first frame: what was not known of yaw before it is common to all.
    axis = robot.C_b_c[2]
    variance = np.array([axis @ state.Sigma_c_w[3:, 3:] @ axis for state in states])
    grown = variance - variance[0] + np.deg2rad(0.5) ** 2
    assert np.sqrt(np.mean(error**2 / grown)) < 1.5
    assert np.rad2deg(np.sqrt(np.mean(error**2))) < 2.0
