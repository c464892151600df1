"""Trajectories and the files they live in: KITTI and TUM text, and arrays in .npz archives.

A trajectory is the pose of the camera in the world, `T_w_c`, at each frame. All three readers
check what they read, because a wrong trajectory evaluates to a plausible number.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import ArrayLike, NDArray

from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.files import read_text, whole_file
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import ROTATION_TOLERANCE
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps, nearest_rows

KITTI_COLUMNS = 12
TUM_COLUMNS = 8
NPZ_SOURCE = re.compile(r"(?P<file>.+\.npz)(?::(?P<key>[^:]*))?")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """`T_w_c` (N, 4, 4), `stamps_ns` (N,) int64 or None where the file has none, and its name."""

    T_w_c: Array
    stamps_ns: Stamps | None
    name: str

    def __len__(self) -> int:
        return len(self.T_w_c)

    @property
    def T_2_1(self) -> Array:
        """Frame-to-frame poses (N - 1, 4, 4): the current camera from the previous one."""
        return lie.se3_inverse(self.T_w_c[1:]) @ self.T_w_c[:-1]

    def select(self, rows: NDArray[np.intp]) -> Trajectory:
        """The poses at `rows`, in that order."""
        stamps = None if self.stamps_ns is None else self.stamps_ns[rows]
        return Trajectory(self.T_w_c[rows], stamps, self.name)


# --- reading -------------------------------------------------------------------------------------


def read_trajectory(source: str | PathLike[str]) -> Trajectory:
    """Read a KITTI file, a TUM file (told apart by their columns) or `FILE.npz:KEY`."""
    text = str(source)
    if NPZ_SOURCE.fullmatch(text):
        return _checked(text, read_npz_array(text), None, None)
    path = Path(text)
    numbers, lines = _read_numbers(path)
    if numbers.shape[1] == KITTI_COLUMNS:
        return _checked(text, _poses_from_kitti(numbers), None, lines)
    return _checked(
        text, _poses_from_tum(path, numbers, lines), _stamps(path, numbers, lines), lines
    )


def npz_keys(path: str | PathLike[str]) -> list[str]:
    """The names of the arrays in an archive."""
    with open_npz(Path(path)) as archive:
        return sorted(archive.files)


def read_npz_array(source: str) -> Array:
    """Read the array that `FILE.npz:KEY` names, as float64."""
    match = NPZ_SOURCE.fullmatch(source)
    if match is None:
        raise FileError(source, "arrays are read from FILE.npz:KEY")
    path, key = Path(match["file"]), match["key"]
    with open_npz(path) as archive:
        if key not in archive.files:
            wanted = f"has no array '{key}'" if key else "needs the name of an array"
            names = ", ".join(sorted(archive.files))
            raise FileError(path, f"{wanted}: name one as FILE.npz:KEY, of {names}")
        array = archive[key]
    if not np.issubdtype(array.dtype, np.number):
        raise FileError(path, f"array '{key}' is of type {array.dtype}, not of numbers")
    return array.astype(np.float64)


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Open an archive; whatever is wrong with it or its arrays is a FileError."""
    try:
        # allow_pickle stays off: an archive from elsewhere must not run code.
        with path.open("rb") as file, np.load(file) as archive:
            if not isinstance(archive, NpzFile):
                raise FileError(path, "is a single array, not an .npz archive")
            yield archive
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(path, f"is not a usable .npz archive: {error}") from None


def read_covariances(source: str, count: int, size: int | None = None) -> Array:
    """Read (count, 3, 3) or (count, 6, 6) covariances of frame-to-frame motion: `FILE.npz:KEY`."""
    array = read_npz_array(source)
    shapes = [(count, n, n) for n in ((3, 6) if size is None else (size,))]
    if array.shape not in shapes:
        expected = " or ".join(map(str, shapes))
        raise FileError(source, f"expected shape {expected}, got {array.shape}")
    bad = ~np.isfinite(array).all(axis=(1, 2))
    _reject(source, bad, None, "is not finite")
    symmetric = 0.5 * (array + np.swapaxes(array, -1, -2))
    _reject(source, np.linalg.eigvalsh(symmetric)[:, 0] <= 0.0, None, "is not positive definite")
    return symmetric


def _read_numbers(path: Path) -> tuple[Array, list[int]]:
    """All rows of numbers of a text file, and the line each stands on."""
    rows: list[list[float]] = []
    lines: list[int] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        content = line.split("#", 1)[0].replace(",", " ").split()
        if not content:
            continue
        rows.append(_row(path, number, content, len(rows[0]) if rows else None))
        lines.append(number)
    if not rows:
        raise FileError(path, "is empty: no pose in it")
    return np.array(rows), lines


def _row(path: Path, line: int, content: list[str], columns: int | None) -> list[float]:
    expected = (KITTI_COLUMNS, TUM_COLUMNS) if columns is None else (columns,)
    if len(content) not in expected:
        wanted = (
            f"{KITTI_COLUMNS} numbers (KITTI) or {TUM_COLUMNS} (TUM)"
            if columns is None
            else f"{columns} numbers as on the first line"
        )
        raise FileError(path, f"expected {wanted}, got {len(content)}", line)
    try:
        return [float(value) for value in content]
    except ValueError as error:
        raise FileError(path, str(error), line) from None


def _poses_from_kitti(numbers: Array) -> Array:
    matrices = numbers.reshape(-1, 3, 4)
    return lie.se3_from(matrices[:, :, :3], matrices[:, :, 3])


def _poses_from_tum(path: Path, numbers: Array, lines: list[int]) -> Array:
    xyzw = numbers[:, 4:]
    norms = np.linalg.norm(xyzw, axis=1)
    _reject(
        str(path), ~(np.abs(norms - 1.0) < 1e-2), lines, "has a quaternion that is not of length 1"
    )
    wxyz = np.roll(xyzw, 1, axis=1) / norms[:, None]
    return lie.se3_from(lie.quaternion_to_matrix(wxyz), numbers[:, 1:4])


def _stamps(path: Path, numbers: Array, lines: list[int]) -> Stamps:
    seconds = numbers[:, 0]
    _reject(str(path), ~np.isfinite(seconds), lines, "has a stamp that is not finite")
    # A double holds seconds since 1970 to 0.24 us only; that is all a TUM file can say.
    stamps = np.round(seconds * 1e9).astype(np.int64)
    backwards = np.concatenate([[False], np.diff(stamps) <= 0])
    _reject(str(path), backwards, lines, "has a stamp that is not later than the one before")
    return stamps


def _checked(
    name: str, poses: Array, stamps: Stamps | None, lines: list[int] | None
) -> Trajectory:
    if poses.ndim != 3 or poses.shape[1:] != (4, 4):
        raise FileError(name, f"expected poses of shape (N, 4, 4), got {poses.shape}")
    if len(poses) == 0:
        raise FileError(name, "is empty: no pose in it")
    _reject(name, ~np.isfinite(poses).all(axis=(1, 2)), lines, "is not finite")
    rotations = poses[:, :3, :3]
    defect = np.abs(rotations @ lie.so3_inverse(rotations) - np.eye(3)).max(axis=(1, 2))
    improper = (defect > ROTATION_TOLERANCE) | (np.linalg.det(rotations) < 0.0)
    improper |= np.abs(poses[:, 3] - [0.0, 0.0, 0.0, 1.0]).max(axis=1) > 1e-9
    _reject(name, improper, lines, "is not a rigid-body pose: its rotation is not orthonormal")
    return Trajectory(lie.se3_from(lie.project_to_so3(rotations), poses[:, :3, 3]), stamps, name)


def _reject(name: str, bad: ArrayLike, lines: list[int] | None, why: str) -> None:
    """Name the first bad row, and its line where the file has lines."""
    if np.any(bad):
        row = int(np.argmax(bad))
        raise FileError(name, f"row {row} {why}", None if lines is None else lines[row])


# --- writing -------------------------------------------------------------------------------------


def write_kitti(path: str | PathLike[str], T_w_c: Array) -> None:
    """Write one row-major 3x4 matrix per line."""
    _write_lines(path, map(_format, T_w_c[:, :3, :].reshape(-1, KITTI_COLUMNS)))


def write_tum(path: str | PathLike[str], T_w_c: Array, stamps_ns: Iterable[int]) -> None:
    """Write `stamp_s x y z qx qy qz qw` per line; stamps keep their nanoseconds."""
    wxyz = lie.quaternion_from_matrix(T_w_c[:, :3, :3])
    values = np.concatenate([T_w_c[:, :3, 3], wxyz[:, 1:], wxyz[:, :1]], axis=1)
    stamps = (f"{stamp // 10**9}.{stamp % 10**9:09d}" for stamp in map(int, stamps_ns))
    _write_lines(path, (f"{s} {_format(row)}" for s, row in zip(stamps, values, strict=True)))


def _write_lines(path: str | PathLike[str], lines: Iterable[str]) -> None:
    with whole_file(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def _format(row: Array) -> str:
    return " ".join(f"{value:.12g}" for value in row)


# --- association ---------------------------------------------------------------------------------


def associate(
    estimate: Trajectory, truth: Trajectory, tolerance_s: float = 0.01
) -> tuple[Trajectory, Trajectory]:
    """Pair the poses of two trajectories: by stamp where both have stamps, else by row.

    By stamp, each estimated pose takes the true pose nearest in time, within `tolerance_s`;
    poses without a partner are left out. By row, the lengths must agree.
    """
    if estimate.stamps_ns is None or truth.stamps_ns is None:
        if len(estimate) != len(truth):
            raise HydraNetError(
                f"{estimate.name} has {len(estimate)} poses and {truth.name} has {len(truth)}: "
                "without stamps in both, the lengths must agree"
            )
        return estimate, truth
    rows, apart = nearest_rows(truth.stamps_ns, estimate.stamps_ns)
    close = apart <= tolerance_s * 1e9
    if not close.any():
        raise HydraNetError(
            f"{estimate.name} and {truth.name} have no stamps within {tolerance_s:g} s of another"
        )
    return estimate.select(np.flatnonzero(close)), truth.select(rows[close])
