"""Rigs from camera_info: raw pairs of every lens, unequal ones, and one camera above the other."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("rosbags", reason="messages need rosbags")

from hydranet_ros.datasets.bag_messages import camera_info
from hydranet_ros.datasets.rigs import Rig, is_raw_pair, stereo_rig
from hydranet_ros.errors import BadInput
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.simulation import Street, StreetConfig
from hydranet_ros.stereo_vo.odometry import StereoVO

SIZE = WIDTH, HEIGHT = 480, 320
PAIR = StereoCamera(Camera(300.0, 300.0, 238.0, 161.0), 0.3)
# Each side has its own lens, and is turned in the rig by a degree or two: p_rectified = R p_raw.
LENSES = Camera(290.0, 292.0, 244.0, 158.0), Camera(308.0, 305.0, 236.0, 163.0)
TURNS = lie.so3_exp([0.01, -0.02, 0.015]), lie.so3_exp([-0.015, 0.01, -0.02])
DISTORTIONS = {
    "plumb_bob": ([-0.28, 0.09, 8e-4, -5e-4, -0.01], [-0.26, 0.08, -4e-4, 3e-4, 0.0]),
    "rational_polynomial": (
        [0.3, 0.1, 5e-4, -3e-4, 0.01, 0.6, 0.15, 0.02],
        [0.28, 0.12, -5e-4, 2e-4, 0.0, 0.58, 0.16, 0.03],
    ),
    "equidistant": ([-0.02, 0.01, -0.004, 0.001], [-0.018, 0.008, -0.003, 0.0]),
}


@pytest.fixture(scope="module")
def street() -> Street:
    return Street(StreetConfig(frames=6, seed=3, width=WIDTH, height=HEIGHT, camera=PAIR))


def infos(model: str) -> list[Any]:
    """camera_info of both sides, as a calibration of the pair writes it."""
    made = []
    for side, (lens, R, D) in enumerate(zip(LENSES, TURNS, DISTORTIONS[model], strict=True)):
        info = camera_info(0, "camera", PAIR.left, SIZE, side * PAIR.baseline_m)
        info.k, info.r = lens.matrix.reshape(-1), R.reshape(-1)
        info.d, info.distortion_model = np.array(D), model
        made.append(info)
    return made


def raw(image: np.ndarray, side: int, model: str) -> np.ndarray:
    """What a raw camera sees, by OpenCV's own way back: raw pixels to rays to rectified pixels."""
    v, u = np.mgrid[:HEIGHT, :WIDTH]
    pixels = np.stack([u, v], axis=-1).reshape(-1, 1, 2).astype(np.float64)
    K, D = LENSES[side].matrix, np.array(DISTORTIONS[model][side])
    module = cv2.fisheye if model == "equidistant" else cv2
    where = module.undistortPoints(pixels, K, D, R=TURNS[side], P=PAIR.left.matrix)
    maps = where.reshape(HEIGHT, WIDTH, 2).astype(np.float32)
    return np.asarray(cv2.remap(image, maps, None, cv2.INTER_CUBIC))


def driven(rig: Rig, frames: list[tuple[int, np.ndarray, np.ndarray]]) -> np.ndarray:
    """T of the last left (or upper) image's camera from the first."""
    assert isinstance(rig.camera, StereoCamera)
    vo, T = StereoVO(rig.camera), np.eye(4)
    for k, (stamp, left, right) in enumerate(frames):
        result = vo.update(rig.frame(stamp, [left, right]))
        if k:
            assert result.pose is not None, result.lost
            T = result.pose.T_2_1 @ T
    return np.asarray(rig.T_image_camera @ T @ lie.se3_inverse(rig.T_image_camera))


@pytest.mark.parametrize("model", DISTORTIONS)
def test_a_raw_pair_is_rectified_as_camera_info_says(street: Street, model: str) -> None:
    pair = infos(model)
    assert is_raw_pair(pair, ["/left/image_raw", "/right/image_raw"])
    assert not is_raw_pair(pair, ["/left/image_rect", "/right/image_rect"])
    rig = stereo_rig(pair[0], pair[1], raw=True)
    assert rig.camera == PAIR
    frames = [(f.stamp_ns, raw(f.left, 0, model), raw(f.right, 1, model)) for f in street]
    first, exact = rig.frame(*frames[0][:1], frames[0][1:]), street.render(0)
    inner = slice(60, -60), slice(90, -90)  # raw images do not see the corners
    for found, true in ((first.left, exact.left), (first.right, exact.right)):
        assert found is not None
        difference = np.abs(found[inner].astype(float) - true[inner])
        assert difference.mean() < 4.0  # resampled twice
        assert np.abs(frames[0][1][inner].astype(float) - exact.left[inner]).mean() > 10.0
    true = lie.se3_inverse(street.T_w_c[-1]) @ street.T_w_c[0]
    wrong = lie.se3_log(driven(rig, frames) @ lie.se3_inverse(true))
    assert np.linalg.norm(wrong[:3]) < 0.02 * np.linalg.norm(true[:3, 3])
    assert np.degrees(np.linalg.norm(wrong[3:])) < 0.1


def test_one_camera_above_the_other(street: Street) -> None:
    """The pair lies on its side: the right camera is the lower one, and the images are turned."""
    c = PAIR.left
    upper = Camera(c.fy, c.fx, HEIGHT - 1.0 - c.cy, c.cx)
    pair = [camera_info(0, "camera", upper, (HEIGHT, WIDTH)) for _ in range(2)]
    pair[1].p[7] = -upper.fy * PAIR.baseline_m
    rig = stereo_rig(pair[0], pair[1], raw=False)
    assert rig.turned
    assert rig.camera == PAIR
    frames = [
        (f.stamp_ns, *(np.ascontiguousarray(np.rot90(image, -1)) for image in (f.left, f.right)))
        for f in street
    ]
    turned, exact = rig.frame(frames[0][0], frames[0][1:]), street.render(0)
    np.testing.assert_array_equal(turned.left, exact.left)
    np.testing.assert_array_equal(turned.right, exact.right)
    # The upper camera's x is -y of the rendered one, its y is x.
    R = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    T = lie.se3_from(R, np.zeros(3))
    true = T @ lie.se3_inverse(street.T_w_c[-1]) @ street.T_w_c[0] @ lie.se3_inverse(T)
    wrong = lie.se3_log(driven(rig, frames) @ lie.se3_inverse(true))
    assert np.linalg.norm(wrong[:3]) < 0.02 * np.linalg.norm(true[:3, 3])
    assert np.degrees(np.linalg.norm(wrong[3:])) < 0.1


def test_what_is_no_pair_is_refused(street: Street) -> None:
    left, right = infos("plumb_bob")
    right.p[7] = -100.0
    with pytest.raises(BadInput, match="not rectified"):
        stereo_rig(left, right, raw=True)
    left, right = infos("plumb_bob")
    left.r = np.ones(9)
    with pytest.raises(BadInput, match="an R that is no rotation"):
        stereo_rig(left, right, raw=True)
    with pytest.raises(BadInput, match="differ in size"):
        Rig(PAIR, (None, None)).frame(0, [street.render(0).left, street.render(0).right[:-1]])
    assert isinstance(Rig(PAIR, (None, None)).frame(0, [np.zeros((9, 9), np.uint8)] * 2), Frame)
