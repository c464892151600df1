"""Recorded visual odometry and network rotations of one drive, in an .npz archive.

Arrays: `T_w_c_vo` (N, 4, 4) with `Sigma_21_vo` (N-1, 6, 6); `C_21_hn` with `Sigma_21_hn`
(N-1, 3, 3), absent where only VO was recorded; a ground truth `T_w_c_gt_oxts` or
`T_w_c_gt_official` (N, 4, 4), absent where there is none; `stamps_ns` (N,) int64, else 10 Hz;
`rotation_source`, a text, 'gyro' or 'hydranet'. A recording that does not say whose rotations it
has is our gyro's if it claims to be as sure as that: see `GYRO_SIGMA`.
Variant `blur` has both sources on blurred images, `nc` another network beside the same VO.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import FileError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.trajectory import (
    npz_keys,
    read_covariances,
    read_npz,
    read_npz_array,
    read_trajectory,
)

VARIANTS = ("", "blur", "nc")
GROUND_TRUTHS = ("T_w_c_gt_oxts", "T_w_c_gt_official")
PERIOD_NS = 100_000_000
LATEST_NS = 9e18
# The median of sqrt(tr Sigma / 3), rad. Version 0.1 of our gyro has .023 deg on KITTI 00, where
# the paper's network has .046 to .107 deg on 00, 02, 05 and 09, clear and blurred. The limit is
# the geometric mean of the nearest two.
GYRO_SIGMA = np.deg2rad(0.033)
ROTATION_SOURCES = ("gyro", "hydranet")


@dataclass(frozen=True, eq=False)
class Recording:
    """One drive: VO and rotations per step, and the truth where it is known."""

    T_w_c_vo: Array
    Sigma_vo: Array
    C_hn: Array | None
    Sigma_hn: Array | None
    T_w_c_gt: Array | None
    stamps_ns: NDArray[np.int64]
    said_source: str | None = None

    @property
    def rotation_source(self) -> Literal["gyro", "hydranet"]:
        """Whose rotations these are: as the file says, else by how sure they claim to be."""
        if self.said_source is not None or self.Sigma_hn is None:
            return "hydranet" if self.said_source == "hydranet" else "gyro"
        sigmas = np.sqrt(np.trace(self.Sigma_hn, axis1=1, axis2=2) / 3.0)
        return "gyro" if float(np.median(sigmas)) < GYRO_SIGMA else "hydranet"

    @property
    def T_vo(self) -> Array:
        """Frame-to-frame T_2_1 (N - 1, 4, 4) of VO."""
        return lie.se3_inverse(self.T_w_c_vo[1:]) @ self.T_w_c_vo[:-1]

    def steps(
        self, without_vo: NDArray[np.bool_], with_rotations: bool
    ) -> Iterator[tuple[int, list[RelativePose | RelativeRotation]]]:
        """The stamp of each frame but the first, and what was measured since the one before."""
        for i, T in enumerate(self.T_vo):
            interval = int(self.stamps_ns[i]), int(self.stamps_ns[i + 1])
            measured: list[RelativePose | RelativeRotation] = []
            if not without_vo[i]:
                measured.append(RelativePose(T, self.Sigma_vo[i], *interval))
            if with_rotations and self.C_hn is not None and self.Sigma_hn is not None:
                measured.append(RelativeRotation(self.C_hn[i], self.Sigma_hn[i], *interval))
            yield interval[1], measured


def read_recording(path: str | PathLike[str], variant: str = "") -> Recording:
    """Read and check a recording."""
    keys = npz_keys(path)
    suffix = f"_{variant}" if variant else ""
    vo = suffix if variant == "blur" else ""
    for key in (f"T_w_c_vo{vo}", f"Sigma_21_vo{vo}"):
        if key not in keys:
            raise FileError(path, f"has no array '{key}': not a recording" + _of_variant(variant))
    poses = read_trajectory(f"{path}:T_w_c_vo{vo}").T_w_c
    steps = len(poses) - 1
    if steps < 1:
        raise FileError(path, "has a single pose: nothing to fuse")
    C_hn = Sigma_hn = None
    if f"C_21_hn{suffix}" in keys:
        C_hn = _rotations(f"{path}:C_21_hn{suffix}", steps)
        Sigma_hn = read_covariances(f"{path}:Sigma_21_hn{suffix}", steps, size=3)
    elif variant:
        raise FileError(path, f"has no array 'C_21_hn{suffix}'" + _of_variant(variant))
    Sigma_vo = read_covariances(f"{path}:Sigma_21_vo{vo}", steps, size=6)
    return Recording(
        poses,
        Sigma_vo,
        C_hn,
        Sigma_hn,
        _truth(path, keys, len(poses)),
        _stamps(path, keys, len(poses)),
        _said_source(path, keys),
    )


def _of_variant(variant: str) -> str:
    return f" of variant '{variant}'" if variant else ""


def _rotations(source: str, count: int) -> Array:
    array = read_npz_array(source, (count, 3, 3))
    finite = np.isfinite(array).all(axis=(1, 2))
    if not finite.all():
        raise FileError(source, f"row {int(np.argmin(finite))} is not finite")
    defect = np.abs(array @ np.swapaxes(array, -1, -2) - np.eye(3)).max(axis=(1, 2), initial=0.0)
    bad = ~(defect < 1e-4) | ~(np.linalg.det(array) > 0.0)
    if bad.any():
        raise FileError(source, f"row {int(np.argmax(bad))} is not a rotation")
    return lie.project_to_so3(array)


def _truth(path: str | PathLike[str], keys: list[str], count: int) -> Array | None:
    for key in GROUND_TRUTHS:
        if key in keys:
            truth = read_trajectory(f"{path}:{key}")
            if len(truth) != count:
                raise FileError(path, f"'{key}' has {len(truth)} poses, VO has {count}")
            return truth.T_w_c
    return None


def _stamps(path: str | PathLike[str], keys: list[str], count: int) -> NDArray[np.int64]:
    if "stamps_ns" not in keys:
        return np.arange(count, dtype=np.int64) * PERIOD_NS
    stamps = read_npz(path, "stamps_ns", "i", [(count,)]).astype(np.int64)
    # Not their difference, which may overflow.
    if not (stamps[1:] > stamps[:-1]).all() or np.abs(stamps.astype(float)).max() > LATEST_NS:
        raise FileError(path, f"'stamps_ns' must be {count} increasing integers, up to 9e18")
    return stamps


def _said_source(path: str | PathLike[str], keys: list[str]) -> str | None:
    if "rotation_source" not in keys:
        return None
    said = str(read_npz(path, "rotation_source", "U", [()]))
    if said not in ROTATION_SOURCES:
        raise FileError(path, f"'rotation_source' is {said!r}, not one of {ROTATION_SOURCES}")
    return said
