"""Self-calibration on rendered images that were distorted by a known field."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Frame
from hydranet_ros.simulation import Street, StreetConfig
from hydranet_ros.stereo_vo.calibration import SIZE, offset_basis
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.odometry import StereoVO

FRAMES = 150
# As found on KITTI 06: up to 7 px in the left image, 15 px in the right one.
THETA = np.zeros(SIZE)
THETA[1:6] = 5e-4, -1.5e-3, 0.029, -0.012, -2e-3
THETA[6:17] = 0, -1e-4, -3e-4, 6e-4, 0.0266, 1.6e-3, -8e-3, -5e-4, -4e-3, 0.011, -0.01


@pytest.fixture(scope="module")
def street() -> Street:
    return Street(StreetConfig(frames=FRAMES, seed=31, width=920, height=278, speed_m_s=10.0))


@pytest.fixture(scope="module")
def frames(street: Street) -> list[Frame]:
    return [Frame(each.stamp_ns, each.left, each.right) for each in street]


def distorted(street: Street, frames: list[Frame]) -> list[Frame]:
    """What a camera sees whose calibration leaves THETA: I(u) = I_exact(u - offset(u)).

    By splines: OpenCV takes positions to a thirty-second of a pixel, which the odometry sees.
    """
    height, width = frames[0].left.shape
    u, v = np.meshgrid(np.arange(width, dtype=float), np.arange(height, dtype=float))
    pixels = np.stack([u, v, u, v], axis=-1).reshape(-1, 4)
    where = (pixels - offset_basis(street.camera.left, pixels) @ THETA).reshape(height, width, 4)

    def warp(image: np.ndarray, x: int) -> np.ndarray:
        at = [where[..., x + 1], where[..., x]]
        bent = map_coordinates(image.astype(np.float32), at, order=3, mode="nearest")
        return np.clip(np.round(bent), 0, 255).astype(np.uint8)

    return [
        Frame(each.stamp_ns, warp(each.left, 0), warp(each.right, 2))
        for each in frames
        if each.right is not None
    ]


def errors(street: Street, frames: list[Frame], vo: StereoVO) -> np.ndarray:
    """(FRAMES - 1, 6) errors of the motions."""
    results = [vo.update(frame) for frame in frames][1:]
    truth = lie.se3_inverse(street.T_w_c[1:]) @ street.T_w_c[:-1]
    assert all(result.pose is not None for result in results)
    found = np.array([result.pose.T_2_1 for result in results if result.pose is not None])
    return np.asarray(lie.se3_log(found @ lie.se3_inverse(truth)))


def sizes(values: np.ndarray) -> tuple[float, float]:
    """The means of a translation's and a rotation's size."""
    metres, radians = (
        np.linalg.norm(values[:, s], axis=1).mean() for s in (slice(3), slice(3, 6))
    )
    return float(metres), float(np.degrees(radians))


@pytest.mark.slow
def test_a_known_distortion_is_found_and_allowed_for(street: Street, frames: list[Frame]) -> None:
    bent = distorted(street, frames)
    vo = StereoVO(street.camera)
    with_it = sizes(errors(street, bent, vo)[50:])
    u, v = np.meshgrid(np.linspace(60, 860, 9), np.linspace(30, 250, 5))
    where = np.stack([u, v, u, v], axis=-1).reshape(-1, 4)
    true = offset_basis(street.camera.left, where) @ THETA
    wrong = vo.calibration.offsets(street.camera.left, where) - true
    share = np.sqrt(np.mean(wrong**2, axis=0) / np.mean(true**2, axis=0))
    assert share.max() < 0.25
    without = StereoVO(street.camera, StereoVOConfig(self_calibration="off"))
    without_it = sizes(errors(street, bent, without)[50:])
    assert with_it[0] < 0.6 * without_it[0]
    assert with_it[1] < 0.9 * without_it[1]
    exact = sizes(errors(street, frames, StereoVO(street.camera))[50:])
    assert with_it[0] < 1.5 * exact[0]
    assert with_it[1] < 1.2 * exact[1]


@pytest.mark.slow
def test_where_nothing_is_wrong_nothing_gets_worse(street: Street, frames: list[Frame]) -> None:
    vo = StereoVO(street.camera)
    found = errors(street, frames, vo)
    without = StereoVO(street.camera, StereoVOConfig(self_calibration="off"))
    metres, degrees = sizes(errors(street, frames, without))
    assert sizes(found)[0] < 1.2 * metres
    assert sizes(found)[1] < 1.2 * degrees
    assert max(vo.calibration_px or (np.inf,)) < 1.0
    truth = lie.se3_inverse(street.T_w_c[1:]) @ street.T_w_c[:-1]
    forward = -truth[:, 2, 3]
    assert abs(np.sum(-found[:, 2]) / forward.sum()) < 0.002
