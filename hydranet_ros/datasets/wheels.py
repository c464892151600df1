"""Recorded odometry of a robot, as motions of its camera.

    NAME.csv    rows `seconds, FR, FL, RR, RL`: counts of the four wheels since the row before
    NAME.npz    `T_w_c_vo` with `Sigma_21_vo` and `stamps_ns`, as `hydranet fuse` reads them
    other       TUM rows `seconds x y z qx qy qz qw` of the base; 21 or 36 numbers may follow:
                the covariance of the motion since the row before (x y z, then rotations)

Wheels on both sides of a skid-steered vehicle give the way by their mean, and the turn by their
difference over the effective track, which is wider than the vehicle as it slips in turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path

import numpy as np

from hydranet_ros.datasets.recording import read_recording
from hydranet_ros.errors import FileError
from hydranet_ros.files import read_lines
from hydranet_ros.fusion.odometry_input import UNKNOWN_SPEED
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, change_frame
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import Configuration, setting

POSE, UPPER, WHOLE = 8, 21, 36
COUNTS = 5
LATEST_S = 9e9


@dataclass(frozen=True)
class WheelsConfig(Configuration):
    """The robot that a file of wheel counts is from, and where its camera is."""

    metres_per_count: float = setting(0.00222, "way of a wheel per count", 1e-9)
    track_m: float = setting(0.75, "effective track: way difference per turned radian", 1e-3)
    track_sigma: float = setting(
        0.01, "how well that is known, as a share: 1 % where it was measured in turns"
    )
    noise_counts: float = setting(0.5, "standard deviation of the counts of a row")
    sigma_m: float = setting(0.02, "of a translation over 0.1 s, where a file has none", 1e-6)
    sigma_deg: float = setting(0.1, "of a rotation over 0.1 s, where a file has none", 1e-6)
    base_from_camera: tuple[float, float, float, float, float, float, float] = setting(
        (0.0, 0.0, 0.0, -0.5, 0.5, -0.5, 0.5),
        "x y z qx qy qz qw of the optical frame in the base: by default it looks forward",
        None,
    )

    @property
    def T_b_c(self) -> Array:
        """The camera in the base."""
        *place, x, y, z, w = self.base_from_camera
        quaternion = np.array([w, x, y, z])
        norm = float(np.linalg.norm(quaternion))
        if not 0.5 < norm < 2.0:
            raise ValueError(f"base_from_camera: the quaternion has length {norm:.3g}, not 1")
        return lie.se3_from(lie.quaternion_to_matrix(quaternion / norm), np.array(place))

    @property
    def up_c(self) -> Array:
        """(3,), the base's z axis in the frame of the camera."""
        up: Array = self.T_b_c[2, :3].copy()
        return up


def read_odometry(path: str | PathLike[str], config: WheelsConfig) -> list[RelativePose]:
    """The motions of a recording, of the camera."""
    path = Path(path)
    if path.suffix == ".npz":
        recording = read_recording(path)
        none = np.zeros(len(recording.Sigma_vo), dtype=bool)
        steps = recording.steps(none, with_rotations=False)
        return [m for _, each in steps for m in each if isinstance(m, RelativePose)]
    rows = _rows(path)
    motions = list(_counted(path, rows, config) if path.suffix == ".csv" else _tum(path, rows))
    if not motions:
        raise FileError(path, "has fewer than two rows in order of time: no odometry")
    T_c_b = lie.se3_inverse(config.T_b_c)
    found = []
    for T_2_1, Sigma, begin, end in motions:
        if Sigma is None:
            sigmas = [config.sigma_m] * 3 + [np.deg2rad(config.sigma_deg)] * 3
            Sigma = np.diag(np.square(sigmas)) * ((end - begin) * 1e-8)
        try:
            found.append(RelativePose(*change_frame(T_c_b, T_2_1, Sigma), begin, end))
        except ValueError as error:
            raise FileError(path, f"motion that ends at {end * 1e-9:.3f} s: {error}") from None
    return found


Row = tuple[Array, Array | None, int, int]


def _rows(path: Path) -> list[Array]:
    rows = []
    for number, line in read_lines(path):
        text = line.partition("#")[0].replace(",", " ").split()
        if not text:
            continue
        try:
            row = np.array([float(each) for each in text])
        except ValueError:
            raise FileError(path, f"line {number} is not a row of numbers") from None
        if not np.isfinite(row).all() or not 0.0 <= row[0] <= LATEST_S:
            raise FileError(path, f"line {number} has a number that is not finite, or no time")
        rows.append(row)
    return rows


def _stamp(row: Array) -> int:
    return round(float(row[0]) * 1e9)


def _counted(path: Path, rows: list[Array], config: WheelsConfig) -> Iterator[Row]:
    """Rows of counts; z, roll and pitch are not measured."""
    per_count, track = config.metres_per_count, config.track_m
    noise = config.noise_counts * per_count
    begin, counts = _stamp(rows[0]) if rows else 0, np.zeros(COUNTS - 1)
    for row in rows[1:]:
        if len(row) != COUNTS:
            raise FileError(path, f"a row has {len(row)} numbers, not time and four wheels")
        counts, end = counts + row[1:], _stamp(row)
        if end <= begin:  # what it counts belongs to the next row
            continue
        right, left = per_count * 0.5 * (counts[:2] + counts[2:])
        way, turn = 0.5 * (left + right), (right - left) / track
        T = lie.se3_exp(-np.array([way, 0.0, 0.0, 0.0, 0.0, turn]))
        variances = ((end - begin) * 1e-9 * UNKNOWN_SPEED) ** 2
        variances[[0, 1, 5]] = noise**2 / 4.0, noise**2 / 4.0, (noise / track) ** 2
        yield T, np.diag(variances), begin, end
        begin, counts = end, np.zeros(COUNTS - 1)


def _tum(path: Path, rows: list[Array]) -> Iterator[Row]:
    for last, row in pairwise(rows):
        if len(row) not in (POSE, POSE + UPPER, POSE + WHOLE):
            raise FileError(
                path, f"a row has {len(row)} numbers, not {POSE}, {POSE + UPPER} or {POSE + WHOLE}"
            )
        begin, end = _stamp(last), _stamp(row)
        if end > begin:
            yield lie.se3_inverse(_pose(path, row)) @ _pose(path, last), _Sigma(row), begin, end


def _pose(path: Path, row: Array) -> Array:
    x, y, z, w = row[4:8]
    norm = float(np.linalg.norm(row[4:8]))
    if not 0.5 < norm < 2.0:
        raise FileError(path, f"a quaternion has length {norm:.3g}, not 1")
    return lie.se3_from(lie.quaternion_to_matrix(np.array([w, x, y, z]) / norm), row[1:4])


def _Sigma(row: Array) -> Array | None:
    """The covariance that follows a pose, of the left perturbation of T_2_1."""
    given = row[POSE:]
    if len(given) == 0:
        return None
    if len(given) == WHOLE:
        return given.reshape(6, 6)
    Sigma = np.zeros((6, 6))
    Sigma[np.triu_indices(6)] = given
    return Sigma + np.triu(Sigma, 1).T
