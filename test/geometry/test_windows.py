"""What windows of an image show: compiled loops give the numbers of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from hydranet_ros.geometry import windows
from hydranet_ros.geometry.windows import brightened, brightness_ratio, smooth, window_centroids

RNG = np.random.default_rng(1)


def test_centroids_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    image = RNG.integers(0, 256, (90, 120), dtype=np.uint8)
    pixels = RNG.uniform((0.0, 0.0), (119.0, 89.0), (60, 2))
    found = window_centroids(image, pixels, 9)
    monkeypatch.setattr(windows, "compiled", lambda: None)
    np.testing.assert_allclose(found, window_centroids(image, pixels, 9), atol=1e-5)


def test_a_step_of_texture_draws_the_centroid_to_it() -> None:
    image = np.full((60, 60), 50, dtype=np.uint8)
    image[:, 33:] = 200  # its gradient is in columns 32 and 33
    x, y = window_centroids(image, np.array([[30.0, 30.0]]), 15)[0]
    assert x == pytest.approx(2.5)
    assert y == pytest.approx(0.0)


def test_a_view_of_something_else_tells_no_exposure() -> None:
    """Two images that share their middle: the rest of one is much brighter."""
    first = RNG.integers(60, 120, (200, 200), dtype=np.uint8)
    second = first.copy()
    second[:, 120:] = 220
    pixels = RNG.uniform((20.0, 20.0), (90.0, 180.0), (60, 2))
    smoothed = smooth(first, 15), smooth(second, 15)
    ratio = brightness_ratio(smoothed[0], pixels, smoothed[1], pixels)
    assert ratio == pytest.approx(1.0, abs=1e-3)
    assert brightened(second, ratio) is second
    darker = smooth(brightened(first, 0.7), 15)
    assert brightness_ratio(smoothed[0], pixels, darker, pixels) == pytest.approx(
        1 / 0.7, rel=0.01
    )
