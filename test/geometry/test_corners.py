"""Corners by compiled loops are those of OpenCV and NumPy."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from hydranet_ros.geometry import corners
from hydranet_ros.geometry.camera import Image
from hydranet_ros.geometry.corners import corner_strength, strongest

pytest.importorskip("numba", reason="numba is not installed")
BORDER = 8


@pytest.fixture
def image() -> Image:
    noise = np.random.default_rng(5).integers(0, 256, (97, 141), dtype=np.uint8)
    return np.asarray(cv2.GaussianBlur(noise, (0, 0), 1.5), dtype=np.uint8)


@pytest.mark.parametrize("block", [2, 3, 5, 9])
def test_strength_is_that_of_opencv(image: Image, block: int) -> None:
    found = np.full(image.shape, -1.0, dtype=np.float32)
    corner_strength(image, block, BORDER, found)
    expected = cv2.cornerMinEigenVal(image, block)
    inner = slice(BORDER, -BORDER), slice(BORDER, -BORDER)
    np.testing.assert_allclose(found[inner], expected[inner], atol=1e-6 * expected.max())
    found[inner] = -1.0
    assert (found == -1.0).all()


@pytest.mark.parametrize("peaks", [False, True])
def test_the_strongest_are_those_of_numpy(
    image: Image, peaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    strength = cv2.cornerMinEigenVal(image, 3)
    at, best = strongest(strength, BORDER, 11, (7, 11), peaks)
    monkeypatch.setattr(corners, "compiled", lambda: None)
    expected_at, expected = strongest(strength, BORDER, 11, (7, 11), peaks)
    np.testing.assert_array_equal(at, expected_at)
    np.testing.assert_array_equal(best, expected)
    np.testing.assert_array_equal(best, strength[at[:, 1], at[:, 0]])
