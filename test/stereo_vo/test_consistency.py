"""Covariances that may be summed: NEES over 1, 10 and 50 frames with cameras known as usual.

The images are exact; the odometry is told a camera that is off as calibrations are: focal length
by 0.05 %, principal point by a pixel, baseline by 0.2 %.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.estimates import RelativePose, compose_with_covariance
from hydranet_ros.simulation import Building, BuildingConfig, Street, StreetConfig
from hydranet_ros.stereo_vo.odometry import StereoVO

FRAMES = 101
WIDE = StereoCamera(Camera(400.0, 400.0, 322.0, 198.0), 0.2)
WORLDS = {
    "car": lambda: Street(StreetConfig(frames=FRAMES, seed=31, speed_m_s=10.0)),
    "fast car": lambda: Street(
        StreetConfig(frames=FRAMES, seed=7, speed_m_s=14.0, max_heading_deg=30.0)
    ),
    "wide": lambda: Street(
        StreetConfig(frames=FRAMES, seed=5, width=640, height=400, speed_m_s=5.0, camera=WIDE)
    ),
    "room": lambda: Building(BuildingConfig(frames=FRAMES, seed=6)),
    "office": lambda: Building(
        BuildingConfig(frames=FRAMES, seed=8, place="office", motion="hand", rate_hz=20.0)
    ),
}


def told(camera: StereoCamera) -> StereoCamera:
    c = camera.left
    left = Camera(1.0005 * c.fx, 1.0005 * c.fy, c.cx + 0.8, c.cy - 0.6)
    return StereoCamera(left, 1.002 * camera.baseline_m)


def nees(motions: list[RelativePose], T_w_c: np.ndarray, length: int) -> float:
    """The mean over blocks of frames that do not overlap, covariances summed."""
    found = []
    for first in range(0, len(motions) - length + 1, length):
        T, Sigma = motions[first].T_2_1, motions[first].Sigma_2_1
        for each in motions[first + 1 : first + length]:
            T, Sigma = compose_with_covariance(each.T_2_1, each.Sigma_2_1, T, Sigma)
        true = lie.se3_inverse(T_w_c[first + length]) @ T_w_c[first]
        error = lie.se3_log(T @ lie.se3_inverse(true))
        found.append(float(error @ np.linalg.solve(Sigma, error)))
    return float(np.mean(found))


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_covariances_may_be_summed(name: str) -> None:
    world = WORLDS[name]()
    vo, motions = StereoVO(told(world.camera)), []
    for each in world:
        result = vo.update(Frame(each.stamp_ns, each.left, each.right))
        motions += [result.pose] if result.pose is not None else []
    assert len(motions) == FRAMES - 1
    T_w_c = np.asarray(world.T_w_c)
    # 6 is ideal. Over one frame the translation is cautious, as what persists is in there so
    # often that it is enough over many: the rotation alone makes about 3. Over 50 there are two
    # blocks: the mean of two chi-square values of 6 degrees is above 1.5 in 99 of 100 cases.
    values = [nees(motions, T_w_c, length) for length in (1, 10, 50)]
    assert 1.8 < values[0] < 6.0, values
    assert 2.5 < values[1] < 12.0, values
    assert 1.5 < values[2] < 14.0, values
    # Distances, along the true ones: noise makes every short step longer than it is.
    found = np.array([each.T_2_1[:3, 3] for each in motions])
    true = np.array(
        [(lie.se3_inverse(after) @ before)[:3, 3] for before, after in pairwise(T_w_c)]
    )
    ratio = (found * true).sum() / (true * true).sum()
    assert abs(ratio - 1.0) < 2.0 * motions[-1].scale_sigma < 0.03
