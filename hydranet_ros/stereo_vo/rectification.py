"""The rectification error of a stereo pair, estimated from the very tracks it disturbs.

A real pair is never rectified exactly: the right image is off by some tenths of a pixel, more in
its corners. Half a pixel at a disparity of 15 is an error of 3 % in depth, the same for every
point and every frame, so it is a bias of the translation and not noise.

With (x, y) the normalised coordinates in the right image and r^2 = x^2 + y^2, the offset is

    dx = t_x - roll y + focal x + axis_x x^2 + axis_y x y + c_x (3 x^2 + y^2) + c_y 2 x y + k x r^2
    dy = t_y + roll x + focal y + axis_x x y + axis_y y^2 + c_x 2 x y + c_y (x^2 + 3 y^2) + k y r^2

to first order: a principal point (t), a rotation about the optical axis, a focal length, a tilt of
the optical axis, decentring (c) and radial distortion, each against the left camera. The rows of
stereo matches show dy; dx shows where the depths of one point in two frames disagree with the
motion of the others. What neither shows (the baseline) is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hydranet_ros.geometry.camera import Camera
from hydranet_ros.geometry.lie import Array

PARAMETERS = ("t_x", "t_y", "roll", "focal", "axis_x", "axis_y", "c_x", "c_y", "k")
SIZE = len(PARAMETERS)

# What a calibration leaves (standard deviations, radians or ratios): principal points to a pixel,
# axes to a degree (the tilt and the principal point are nearly exchangeable in a calibration, so
# this is large), focal lengths and distortion coefficients to some thousandths.
PRIOR_SIGMA = np.array([1.5e-3, 1.5e-3, 2e-3, 3e-3, 2e-2, 2e-2, 7e-3, 7e-3, 5e-3])


def offset_basis(camera: Camera, right: Array) -> Array:
    """d(offset)/d(parameters) in pixels at (n, 2) right pixels: (n, 2, 9)."""
    x, y = camera.normalise(right).T
    one, zero = np.ones_like(x), np.zeros_like(x)
    xx, xy, yy = x * x, x * y, y * y
    r2 = xx + yy
    dx = [one, zero, -y, x, xx, xy, 3.0 * xx + yy, 2.0 * xy, x * r2]
    dy = [zero, one, x, y, xy, yy, 2.0 * xy, xx + 3.0 * yy, y * r2]
    basis = np.stack([np.stack(dx, axis=-1), np.stack(dy, axis=-1)], axis=1)
    return np.asarray(basis * np.array([camera.fx, camera.fy])[:, None])


@dataclass(frozen=True, eq=False)
class RectificationError:
    """A Gaussian over the nine parameters: (9,) mean and (9, 9) information."""

    mean: Array
    information: Array

    @staticmethod
    def prior() -> RectificationError:
        """Nothing but what a calibration usually leaves."""
        return RectificationError(np.zeros(SIZE), np.diag(PRIOR_SIGMA**-2))

    def updated(self, information: Array, vector: Array) -> RectificationError:
        """The product with a measurement of the given (9, 9) information and (9,) vector."""
        total = self.information + information
        mean = np.linalg.solve(total, self.information @ self.mean + vector).astype(np.float64)
        return RectificationError(mean, total)

    def aged(self, share: float) -> RectificationError:
        """Forget a share of what was measured, so that mounts may creep; the prior stays."""
        prior = np.diag(PRIOR_SIGMA**-2)
        return RectificationError(self.mean, self.information + share * (prior - self.information))

    def offsets(self, camera: Camera, right: Array) -> Array:
        """What to subtract from (n, 2) right pixels."""
        return offset_basis(camera, right) @ self.mean
