"""Cameras that repeat, lag, or look at something large that moves: said, or in the covariance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Frame, StereoCamera
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.sensor import SensorConfig
from hydranet_ros.simulation.street import Street
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.stereo_vo.result import Lost, VOResult


class Drive:
    """Rendered frames with their true poses."""

    def __init__(self, frames: int = 16) -> None:
        street = Street(StreetConfig(frames=frames))
        made = list(street)
        self.camera: StereoCamera = street.camera
        self.frames = [Frame(each.stamp_ns, each.left, each.right) for each in made]
        self.T_w_c = {each.stamp_ns: each.T_w_c for each in made}

    def errors(self, result: VOResult) -> tuple[float, float]:
        """Metres off, and in standard deviations."""
        assert result.pose is not None
        first, second = self.T_w_c[result.pose.stamp_1_ns], self.T_w_c[result.pose.stamp_2_ns]
        return off(result, lie.se3_inverse(second) @ first)


def off(result: VOResult, truth: np.ndarray) -> tuple[float, float]:
    assert result.pose is not None
    xi = lie.se3_log(result.pose.T_2_1 @ lie.se3_inverse(truth))
    sigmas = np.sqrt(np.diag(result.pose.Sigma_2_1))
    return float(np.linalg.norm(xi[:3])), float((np.abs(xi) / sigmas).max())


@pytest.fixture(scope="module")
def drive() -> Drive:
    return Drive()


@pytest.mark.parametrize("side", ["both", "left", "right"])
def test_a_repeated_image_is_lost_and_bridged(drive: Drive, side: str) -> None:
    vo = StereoVO(drive.camera)
    for frame in drive.frames[:4]:
        vo.update(frame)
    before, now = drive.frames[3], drive.frames[4]
    assert now.right is not None
    left = before.left if side != "right" else now.left
    right = before.right if side != "left" else now.right
    result = vo.update(Frame(now.stamp_ns, left, right))
    assert (result.pose, result.lost) == (None, Lost.REPEATED_IMAGE)
    assert result.bridged
    after = vo.update(drive.frames[5])
    assert after.stamp_1_ns == before.stamp_ns
    assert drive.errors(after)[0] < 0.05


def test_standing_has_a_floor_under_its_sigma(drive: Drive) -> None:
    """The same view with fresh noise: no motion, and not known better than the floor."""
    rng, config = np.random.default_rng(0), StereoVOConfig()
    vo = StereoVO(drive.camera, config)
    for i in range(6):
        pair = (_noisy(rng, image) for image in (drive.frames[0].left, drive.frames[0].right))
        result = vo.update(Frame(10**9 + i * 10**8, *pair))
    assert result.pose is not None
    sigmas = np.sqrt(np.diag(result.pose.Sigma_2_1))
    assert sigmas[:3].min() >= 0.999 * config.floor_m
    assert sigmas[3:].min() >= 0.999 * np.deg2rad(config.floor_deg)
    metres, in_sigmas = off(result, np.eye(4))
    assert metres < 0.01
    assert in_sigmas < 5.0


@pytest.mark.parametrize("late", [1, -1])
def test_a_right_image_of_another_instant_is_noticed(drive: Drive, late: int) -> None:
    vo, found = StereoVO(drive.camera), []
    for i in range(1, len(drive.frames) - 1):
        frame, other = drive.frames[i], drive.frames[i - late]
        found.append(vo.update(Frame(frame.stamp_ns, frame.left, other.right)))
    assert all(result.pose is None for result in found)
    assert sum(result.lost is Lost.CAMERAS_DISAGREE for result in found) > 5


def test_a_pair_of_one_instant_is_not_taken_for_late(drive: Drive) -> None:
    vo = StereoVO(drive.camera)
    found = [vo.update(frame) for frame in drive.frames]
    assert all(result.pose is not None for result in found[1:])


def _noisy(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    return np.clip(image + rng.normal(0.0, 1.0, image.shape), 0, 255).astype(np.uint8)


HALVES: dict[str, Callable[[int, int], tuple[slice, slice]]] = {
    "left": lambda h, w: (slice(None), slice(0, w // 2)),
    "right": lambda h, w: (slice(None), slice(w // 2, w)),
    "bottom": lambda h, w: (slice(h // 2, h), slice(None)),
}


@pytest.mark.parametrize("half", HALVES)
def test_standing_with_half_of_the_image_moving_is_in_the_covariance(
    drive: Drive, half: str
) -> None:
    rng, vo = np.random.default_rng(0), StereoVO(drive.camera)
    still = drive.frames[2]
    where = HALVES[half](*still.left.shape)
    for i in range(10):
        moving = drive.frames[2 + i]
        pair = []
        for view, other in ((still.left, moving.left), (still.right, moving.right)):
            image = np.array(view)
            image[where] = np.array(other)[where]
            pair.append(_noisy(rng, image))
        result = vo.update(Frame(10**9 + i * 10**8, *pair))
        if result.pose is not None:
            assert off(result, np.eye(4))[1] < 5.0, i


def test_other_settings_leave_the_motion_alone(drive: Drive) -> None:
    """Applied while running, they change neither the frames nor the rectification."""
    changed, steady = StereoVO(drive.camera), StereoVO(drive.camera)
    for i, frame in enumerate(drive.frames):
        if i == 8:
            changed.apply(StereoVOConfig(max_bridged_frames=3))
        ours, theirs = changed.update(frame), steady.update(frame)
    assert ours.pose is not None
    assert theirs.pose is not None
    np.testing.assert_array_equal(ours.pose.T_2_1, theirs.pose.T_2_1)
    np.testing.assert_array_equal(ours.pose.Sigma_2_1, theirs.pose.Sigma_2_1)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_rolling_shutter_is_told(share: float) -> None:
    """By the motion of points that move down: they are read later the second time."""
    sensor = SensorConfig(readout_s=0.1 * share)
    street = Street(StreetConfig(frames=60, seed=17, sensor=sensor))
    vo = StereoVO(street.camera)
    for each in street:
        vo.update(Frame(each.stamp_ns, each.left, each.right))
    found, sigma = vo.readout_share
    assert abs(found - share) < 3.0 * sigma < 0.3
    assert ("rolling shutter" in str(vo.doubt)) == (share > 0.0)
