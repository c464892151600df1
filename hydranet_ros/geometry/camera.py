"""Calibrated cameras and the frames they take: projection, triangulation, their Jacobians.

A stereo pair is rectified: both images share focal lengths and rows, and the right camera sits
`baseline_m` along the left one's x axis. A stereo measurement is `y = (u, v, u_right)` in pixels;
a point is `p = (x, y, z)` in the left optical frame (x right, y down, z forward), in metres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hydranet_ros.geometry.lie import Array

Image = NDArray[np.uint8]

# The pose of an optical frame (z forward, y down) in a base frame (x forward, z up) at its origin.
T_BASE_OPTICAL: Array = np.array(
    [[0.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
)


@dataclass(frozen=True, eq=False)
class Frame:
    """A rectified stereo pair of grey images (h, w), or one image: then `right` is None.

    An RGB-D camera has one image and (h, w) `depth` in metres, of the same pixels; 0 and NaN are
    holes. Its `StereoCamera` has a baseline that is virtual (see stereo_vo/depth.py).
    """

    stamp_ns: int
    left: Image
    right: Image | None = None
    depth: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Camera:
    """A pinhole camera without distortion: u = fx x/z + cx, v = fy y/z + cy."""

    fx: float
    fy: float
    cx: float
    cy: float

    def __post_init__(self) -> None:
        if not all(np.isfinite([self.fx, self.fy, self.cx, self.cy])):
            raise ValueError(f"camera intrinsics must be finite, got {self}")
        if self.fx <= 0.0 or self.fy <= 0.0:
            raise ValueError(f"focal lengths must be positive, got fx {self.fx}, fy {self.fy}")

    @property
    def matrix(self) -> Array:
        """K, (3, 3)."""
        return np.array([[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]])

    def normalise(self, pixels: ArrayLike) -> Array:
        """(..., 2) pixels -> (..., 2) normalised image coordinates x/z, y/z."""
        return (np.asarray(pixels, dtype=np.float64) - (self.cx, self.cy)) / (self.fx, self.fy)

    def project(self, points: ArrayLike) -> Array:
        """(..., 3) points -> (..., 2) pixels."""
        p = np.asarray(points, dtype=np.float64)
        return p[..., :2] / p[..., 2:] * (self.fx, self.fy) + (self.cx, self.cy)

    def project_jacobian(self, points: ArrayLike) -> Array:
        """d(pixel)/d(point), (..., 3) -> (..., 2, 3)."""
        p = np.asarray(points, dtype=np.float64)
        x, y, z = p[..., 0], p[..., 1], p[..., 2]
        out = np.zeros((*p.shape[:-1], 2, 3))
        out[..., 0, 0] = self.fx / z
        out[..., 1, 1] = self.fy / z
        out[..., 0, 2] = -self.fx * x / z**2
        out[..., 1, 2] = -self.fy * y / z**2
        return out


@dataclass(frozen=True)
class StereoCamera:
    """A rectified stereo pair; `left` holds for both images."""

    left: Camera
    baseline_m: float

    def __post_init__(self) -> None:
        if not np.isfinite(self.baseline_m) or self.baseline_m <= 0.0:
            raise ValueError(
                f"the baseline must be positive, got {self.baseline_m} m: are the cameras swapped?"
            )

    def project(self, points: ArrayLike) -> Array:
        """(..., 3) points -> (..., 3) measurements; u_right = u - fx b / z."""
        p = np.asarray(points, dtype=np.float64)
        uv = self.left.project(p)
        u_right = uv[..., 0] - self.left.fx * self.baseline_m / p[..., 2]
        return np.concatenate([uv, u_right[..., None]], axis=-1)

    def project_jacobian(self, points: ArrayLike) -> Array:
        """dy/dp, (..., 3) -> (..., 3, 3)."""
        p = np.asarray(points, dtype=np.float64)
        x, z = p[..., 0], p[..., 2]
        fx, b = self.left.fx, self.baseline_m
        out = np.zeros((*p.shape[:-1], 3, 3))
        out[..., :2, :] = self.left.project_jacobian(p)
        out[..., 2, 0] = fx / z
        out[..., 2, 2] = -fx * (x - b) / z**2
        return out

    def triangulate(self, measurements: ArrayLike) -> Array:
        """(..., 3) measurements -> (..., 3) points: z = fx b / (u - u_right).

        The disparity must be positive; select by it first.
        """
        m = np.asarray(measurements, dtype=np.float64)
        c = self.left
        z = c.fx * self.baseline_m / (m[..., 0] - m[..., 2])
        return np.stack([(m[..., 0] - c.cx) * z / c.fx, (m[..., 1] - c.cy) * z / c.fy, z], axis=-1)

    def triangulate_jacobian(self, measurements: ArrayLike) -> Array:
        """dp/dy, (..., 3) -> (..., 3, 3): the inverse of `project_jacobian` at the same point."""
        m = np.asarray(measurements, dtype=np.float64)
        c = self.left
        disparity = m[..., 0] - m[..., 2]
        p = self.triangulate(m)
        z = p[..., 2]
        out = np.zeros((*m.shape[:-1], 3, 3))
        out[..., :, 0] = -p / disparity[..., None]
        out[..., :, 2] = p / disparity[..., None]
        out[..., 0, 0] += z / c.fx
        out[..., 1, 1] = z / c.fy
        return out
