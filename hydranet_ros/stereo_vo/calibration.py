"""What a calibration left wrong in a stereo pair, estimated from the very tracks it disturbs.

No pair is rectified exactly: its images are off by some tenths of a pixel, more in their corners.
Half a pixel at a disparity of 15 is an error of 3 % in depth, the same for every point and every
frame, so it is a bias of the motion and not noise.

With (x, y) the normalised coordinates in an image and r^2 = x^2 + y^2, the offset is

    dx = t_x - roll y + focal x + axis_x x^2 + axis_y x y + c_x (3 x^2 + y^2) + c_y 2 x y + x D
    dy = t_y + roll x + focal y + axis_x x y + axis_y y^2 + c_x 2 x y + c_y (x^2 + 3 y^2) + y D
    D  = k1 (r^2 - h^2) + k2 (r^4 - h^4) + k3 (r^6 - h^6)

to first order: a principal point (t), a rotation about the optical axis, a focal length, a tilt of
the optical axis, decentring (c) and radial distortion (k) that keeps the magnification at radius
h. The left image has the `both` part of it, without t, roll and axis, which are rotations of the
whole pair (a shared principal point is one to first order); the right image has the sum of the
`both` and the `right` part.

What shows which: rows of stereo matches show dy of `right`; its dx shows where the depths of one
point in two frames disagree with the motion of the others. Points of one depth that move outwards
must do so alike all over the image: that shows `both` but for a magnification, which stretches
depths, and with them distances, and is no rigid motion only where the camera turns. What nothing
shows, the baseline, stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from os import PathLike
from typing import Any

import numpy as np
import yaml

from hydranet_ros.errors import FileError, compiled_loops
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import read_yaml

compiled = partial(compiled_loops, "hydranet_ros.stereo_vo.loops_numba")
"""The inner loops of stereo odometry; None where numba is not installed."""

_FIELD = ("t_x", "t_y", "roll", "focal", "axis_x", "axis_y", "c_x", "c_y", "k1", "k2", "k3")
_BOTH = (3, 6, 7, 8, 9, 10)
SHARED = len(_BOTH)
PARAMETERS = (*(f"both_{_FIELD[i]}" for i in _BOTH), *(f"right_{name}" for name in _FIELD))
SIZE = len(PARAMETERS)

# What a calibration leaves (standard deviations, radians or ratios): principal points to a pixel,
# axes to a degree (the tilt and the principal point are nearly exchangeable in a calibration, so
# this is large), focal lengths to some thousandths, distortion coefficients to a hundredth. The
# shared focal length is held more tightly than it may be wrong: few turns say little of it, and
# what no smooth field describes would speak in its place (0.45 deg/100 m on KITTI 06 with 0.2 %).
_PRIOR = {
    "both": (3e-4, 2e-3, 2e-3, 1e-2, 1e-2, 1e-2),
    "right": (1.5e-3, 1.5e-3, 2e-3, 3e-3, 2e-2, 2e-2, 7e-3, 7e-3, 1e-2, 1e-2, 1e-2),
}
PRIOR_SIGMA = np.array([*_PRIOR["both"], *_PRIOR["right"]])


# The squared radius at which radial distortion leaves the magnification as it is. A lens whose
# distortion was taken for too small had its focal length fitted to the whole image, so the error
# vanishes somewhere between the centre and the corners. Nothing but turns can tell where, and they
# do so poorly: further out rotations gain and distances come out short. On KITTI 06 rotation is
# best at 0.3: 0.29, 0.21, 0.23, 0.31 deg/100 m and 0.24, 0.37, 0.51, 0.66 % short at 0, 0.3, 0.4,
# 0.5.
_HELD = 0.3**2


def _field(camera: Camera, pixels: Array) -> Array:
    """d(offset)/d(parameters of one image) in pixels at (n, 2) pixels: (n, 2, 11)."""
    fast = compiled()
    if fast is not None:
        lens = camera.fx, camera.fy, camera.cx, camera.cy, 0.0
        return np.asarray(fast.field(np.asarray(pixels, dtype=np.float64), lens, _HELD))
    x, y = (pixels[:, 0] - camera.cx) / camera.fx, (pixels[:, 1] - camera.cy) / camera.fy
    xx, xy, yy = x * x, x * y, y * y
    r2 = xx + yy
    r4 = r2 * r2
    radial = (r2 - _HELD, r4 - _HELD**2, r4 * r2 - _HELD**3)
    columns: tuple[tuple[Array | float, Array | float], ...] = (
        *((1.0, 0.0), (0.0, 1.0), (-y, x), (x, y), (xx, xy), (xy, yy)),
        *((3.0 * xx + yy, 2.0 * xy), (2.0 * xy, xx + 3.0 * yy)),
        *((x * each, y * each) for each in radial),
    )
    out = np.empty((len(_FIELD), 2, len(x)))
    for row, (dx, dy) in zip(out, columns, strict=True):
        row[0], row[1] = dx, dy
    out[:, 0] *= camera.fx
    out[:, 1] *= camera.fy
    return out.transpose(2, 1, 0)


def offset_basis(camera: Camera, features: Array) -> Array:
    """d(offset)/d(parameters) in pixels at (n, 4) features: (n, 4, 17)."""
    left, right = _field(camera, features[:, :2]), _field(camera, features[:, 2:])
    out = np.zeros((len(features), 4, SIZE))
    out[:, :2, :SHARED] = left[..., _BOTH]
    out[:, 2:, :SHARED] = right[..., _BOTH]
    out[:, 2:, SHARED:] = right
    return out


@dataclass(frozen=True, eq=False)
class Calibration:
    """A Gaussian over the parameters: the prior, and what was measured.

    `measured` is an information matrix (17, 17) and vector (17,).
    """

    measured: tuple[Array, Array]
    prior_sigma: Array

    @staticmethod
    def prior(sigma: Array = PRIOR_SIGMA) -> Calibration:
        """Nothing but what a calibration usually leaves."""
        return Calibration((np.zeros((SIZE, SIZE)), np.zeros(SIZE)), sigma)

    @cached_property
    def information(self) -> Array:
        """(17, 17), of the prior and all measurements."""
        return np.asarray(np.diag(self.prior_sigma**-2) + self.measured[0])

    @cached_property
    def covariance(self) -> Array:
        """(17, 17)."""
        return np.asarray(np.linalg.inv(self.information))

    @cached_property
    def mean(self) -> Array:
        """(17,) most likely parameters."""
        return np.asarray(np.linalg.solve(self.information, self.measured[1]), dtype=np.float64)

    def updated(self, information: Array, vector: Array) -> Calibration:
        """The product with a measurement of the given information and information vector."""
        sums = self.measured[0] + information, self.measured[1] + vector
        return Calibration(sums, self.prior_sigma)

    def aged(self, share: float) -> Calibration:
        """Forget a share of what was measured, so that mounts may creep; the prior stays."""
        kept = (1.0 - share) * self.measured[0], (1.0 - share) * self.measured[1]
        return Calibration(kept, self.prior_sigma)

    def offsets(self, camera: Camera, features: Array) -> Array:
        """What to subtract from (n, 4) features (u, v, u_right, v_right)."""
        left, right = np.zeros(len(_FIELD)), self.mean[SHARED:].copy()
        left[list(_BOTH)] = self.mean[:SHARED]
        sides = (features[:, :2], left), (features[:, 2:], left + right)
        return np.concatenate([_field(camera, at) @ each for at, each in sides], axis=1)

    def field(
        self, camera: Camera, shape: tuple[int, ...], columns: int = 9, rows: int = 9
    ) -> tuple[Array, Array]:
        """(n, 2) pixels spread over images of a (height, width), (n, 4) offsets in both there."""
        u, v = np.meshgrid(
            np.linspace(0, shape[1] - 1, columns), np.linspace(0, shape[0] - 1, rows)
        )
        where = np.stack([u, v, u, v], axis=-1).reshape(-1, 4)
        return where[:, :2], self.offsets(camera, where)

    def largest_px(
        self, camera: Camera, shape: tuple[int, ...], sigmas: float = 0.0
    ) -> tuple[float, float]:
        """The largest offsets within images of a (height, width): left and right, in pixels.

        Only those count that are above so many of their standard deviations.
        """
        where, offset = self.field(camera, shape)
        basis = offset_basis(camera, np.tile(where, 2))
        variance = np.einsum("nia,ab,nib->ni", basis, self.covariance, basis)
        found = []
        for side in (slice(2), slice(2, 4)):
            length = np.linalg.norm(offset[:, side], axis=1)
            sure = length > sigmas * np.sqrt(variance[:, side].sum(axis=1))
            found.append(float(length[sure].max(initial=0.0)))
        return found[0], found[1]


# Rectified images off by more than this somewhere deserve a better calibration, if it is sure.
LARGE_OFFSET_PX, SURE_SIGMAS = 3.0, 4.0


def large_offset(left_px: float, right_px: float) -> str | None:
    """What to say where a calibration is found to be far off."""
    if max(left_px, right_px) < LARGE_OFFSET_PX:
        return None
    return (
        f"the calibration is off by up to {left_px:.1f} px (left) and {right_px:.1f} px (right): "
        "the odometry allows for it, a better calibration is better"
    )


# --- files ---------------------------------------------------------------------------------------

# How far the camera of a file may be from the one in use: a few last digits, not another camera.
_SAME_CAMERA = 1e-3
# Parameters above this bend images by a tenth of the focal length.
_LARGEST = 0.1
# Share of a file's information that is left to it: rigs change with temperature and transport.
_KEPT = 0.1
_HEAD = """\
# What the calibration of a stereo pair left wrong, estimated by `hydranet run` from its images;
# read back by --calibration. The offset in an image is subtracted from what is measured there.
# With (x, y) normalised, r^2 = x^2 + y^2, h = 0.3, D = sum of k_i (r^(2 i) - h^(2 i)), it is
#   dx = t_x - roll y + focal x + axis_x x^2 + axis_y x y + c_x (3 x^2 + y^2) + c_y 2 x y + x D
#   dy = t_y + roll x + focal y + axis_x x y + axis_y y^2 + c_x 2 x y + c_y (x^2 + 3 y^2) + y D
# The left image has the parameters `both_`, the right one the sums of `both_` and `right_`.
# mean and sigma are for people; information and vector are what is read.
"""


def calibration_text(calibration: Calibration, camera: StereoCamera) -> str:
    """The content of a file, YAML."""

    def rounded(values: Array) -> list[float]:
        return [float(f"{value:.9g}") for value in values]

    sigma = np.sqrt(np.diag(calibration.covariance))
    values = {
        "camera": asdict(camera),
        "mean": dict(zip(PARAMETERS, rounded(calibration.mean), strict=True)),
        "sigma": dict(zip(PARAMETERS, rounded(sigma), strict=True)),
        "vector": rounded(calibration.measured[1]),
        "information": [rounded(row) for row in calibration.measured[0]],
    }
    return _HEAD + yaml.safe_dump(values, sort_keys=False, width=99)


def read_calibration(path: str | PathLike[str], camera: StereoCamera) -> Calibration:
    """What an earlier drive knew of the same pair, with a tenth of its information."""
    values = read_yaml(path)
    _check_camera(path, values.get("camera"), camera)
    mean = values.get("mean")
    if not isinstance(mean, Mapping) or set(mean) != set(PARAMETERS):
        raise FileError(path, f"is not a self-calibration: mean must have {len(PARAMETERS)} names")
    vector = _numbers(path, values, "vector", (SIZE,))
    information = _numbers(path, values, "information", (SIZE, SIZE))
    if np.abs(information - information.T).max() > 1e-6 * max(np.abs(information).max(), 1e-9):
        raise FileError(path, "information is not symmetric")
    found = Calibration((_KEPT * 0.5 * (information + information.T), _KEPT * vector), PRIOR_SIGMA)
    if np.linalg.eigvalsh(found.information)[0] <= 0.0:
        raise FileError(path, "information is not positive")
    if np.abs(found.mean).max() > _LARGEST:
        raise FileError(
            path, f"has parameters above {_LARGEST}: that is another lens, not an error"
        )
    return found


def _check_camera(path: str | PathLike[str], values: Any, camera: StereoCamera) -> None:
    left = values.get("left") if isinstance(values, Mapping) else None
    if not isinstance(left, Mapping):
        raise FileError(path, "has no camera: not a self-calibration of a pair")
    known = {**asdict(camera.left), "baseline_m": camera.baseline_m}
    for name, value in known.items():
        found = {**values, **left}.get(name)
        if not isinstance(found, (int, float)) or abs(found - value) > _SAME_CAMERA * abs(value):
            raise FileError(path, f"is of another pair: its {name} is {found}, not {value:g}")


def _numbers(
    path: str | PathLike[str], values: dict[str, Any], name: str, shape: tuple[int, ...]
) -> Array:
    try:
        found = np.array(values.get(name), dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.shape != shape or not np.isfinite(found).all():
        raise FileError(path, f"{name} must be finite numbers of shape {shape}")
    return found
