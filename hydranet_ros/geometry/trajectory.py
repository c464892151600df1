"""Trajectories and the files they live in: KITTI, TUM, EuRoC text, and arrays in .npz archives.

A trajectory is the pose of the camera in the world, `T_w_c`, at each frame. All readers
check what they read, because a wrong trajectory evaluates to a plausible number.
"""

from __future__ import annotations

import re
import struct
import zipfile
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, NDArray

from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.files import read_lines, whole_file
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import ROTATION_TOLERANCE
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps, nearest_rows

KITTI_COLUMNS = 12
TUM_COLUMNS = 8
EUROC_COLUMNS = 17  # ns, position, quaternion w x y z, then velocity and biases
# The truth is not known in a gap that is longer than so many of its usual steps, and than this.
GAP_STEPS, GAP_NS = 4.0, 100_000_000
SAME_NS = 1_000  # seconds since 1970 in a file are rounded to less
LATEST_S = 9e9  # 64 bits hold so many seconds in nanoseconds
FARTHEST_M = 1e9  # beyond it, squares and products of poses lose what is near
LARGEST_ARRAY = 64 << 20  # bytes of an array: half a million poses
LARGEST_DIRECTORY = 1 << 16  # bytes of an archive's table of contents
# A covariance is symmetric up to how it was computed.
SYMMETRY_TOLERANCE = 1e-6
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

    def at(self, stamps_ns: Stamps) -> Array:
        """The poses at other stamps, interpolated on SO(3) and R^3 between two neighbours.

        C = C_a Exp(s Log(C_a^-1 C_b)), r = r_a + s (r_b - r_a). Where there is no pose on both
        sides, or they are far apart, the pose is not known: NaN.
        """
        if self.stamps_ns is None:
            raise ValueError(f"{self.name} has no stamps to interpolate between")
        known, T = self.stamps_ns, np.full((len(stamps_ns), 4, 4), np.nan)
        rows, apart = nearest_rows(known, stamps_ns)
        T[apart <= SAME_NS] = self.T_w_c[rows[apart <= SAME_NS]]
        if len(known) < 2:
            return T
        longest = max(GAP_NS, GAP_STEPS * float(np.median(np.diff(known))))
        after = np.clip(np.searchsorted(known, stamps_ns), 1, len(known) - 1)
        begin, end = known[after - 1], known[after]
        inside = (begin < stamps_ns) & (stamps_ns < end) & (end - begin <= longest)
        a, b = self.T_w_c[after - 1][inside], self.T_w_c[after][inside]
        share = ((stamps_ns - begin) / (end - begin))[inside, None]
        turn = lie.so3_log(lie.so3_inverse(a[:, :3, :3]) @ b[:, :3, :3])
        T[inside] = lie.se3_from(
            a[:, :3, :3] @ lie.so3_exp(share * turn),
            a[:, :3, 3] + share * (b[:, :3, 3] - a[:, :3, 3]),
        )
        return T


# --- reading -------------------------------------------------------------------------------------


def read_trajectory(source: str | PathLike[str]) -> Trajectory:
    """Read a KITTI, TUM or EuRoC file (told apart by their columns) or `FILE.npz:KEY`."""
    text = str(source)
    if NPZ_SOURCE.fullmatch(text):
        return _checked(text, read_npz_array(text), None, None)
    path = Path(text)
    numbers, lines = _read_numbers(path)
    if numbers.shape[1] == KITTI_COLUMNS:
        return _checked(text, _poses_from_kitti(numbers), None, lines)
    if numbers.shape[1] == EUROC_COLUMNS:
        numbers = numbers[:, [0, 1, 2, 3, 5, 6, 7, 4]]  # the quaternion as x y z w
        numbers[:, 0] *= 1e-9
    return _checked(
        text, _poses_from_tum(path, numbers, lines), _stamps(path, numbers, lines), lines
    )


def read_npz_array(source: str, *shapes: tuple[int, ...]) -> Array:
    """Read the array that `FILE.npz:KEY` names, as float64, of one of some shapes.

    Type, shape and size are those of its header, so that nothing else is ever read.
    """
    path, key = _npz_source(source)
    array = read_npz(path, key, "fiu", shapes)
    return array.astype(np.float64, copy=False)


def _npz_source(source: str) -> tuple[Path, str]:
    match = NPZ_SOURCE.fullmatch(source)
    if match is None:
        raise FileError(source, "arrays are read from FILE.npz:KEY")
    return Path(match["file"]), match["key"] or ""


def npz_keys(path: str | PathLike[str]) -> list[str]:
    """The names of the arrays in an archive."""
    with _opened_npz(Path(path)) as archive:
        return _keys(archive)


def read_npz(
    path: str | PathLike[str],
    key: str,
    kinds: str,
    shapes: Iterable[tuple[int, ...]] = (),
    largest: int = LARGEST_ARRAY,
) -> NDArray[np.generic]:
    """Read an array of some kinds of numbers (`f`, `i`, ...) and one of some shapes, if any."""
    path = Path(path)
    with _opened_npz(path) as archive:
        keys = _keys(archive)
        if key not in keys:
            wanted = f"has no array '{key}'" if key else "needs the name of an array"
            raise FileError(path, f"{wanted}: name one as FILE.npz:KEY, of {', '.join(keys)}")
        with archive.open(f"{key}.npy") as file:
            shape, order, kind = _header(file)
            if kind.kind not in kinds:
                wanted = "whole" if kinds == "i" else "real"
                raise FileError(path, f"array '{key}' is of type {kind}, not of {wanted} numbers")
            expected = list(shapes)
            if expected and shape not in expected:
                text = " or ".join(map(str, expected))
                raise FileError(f"{path}:{key}", f"expected shape {text}, got {shape}")
            count = int(np.prod(shape, dtype=object))
            if count * kind.itemsize > largest:
                raise FileError(
                    f"{path}:{key}", f"has shape {shape}: at most {largest >> 20} MB are read"
                )
            data = file.read(count * kind.itemsize)
    if len(data) != count * kind.itemsize:
        raise FileError(path, f"is cut off in array '{key}': copy it again")
    flat = np.frombuffer(data, dtype=kind)
    return flat.reshape(shape, order="F" if order else "C")


def _keys(archive: zipfile.ZipFile) -> list[str]:
    return sorted(n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy"))


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    read = npy.read_array_header_2_0
    if npy.read_magic(file) == (1, 0):
        read = npy.read_array_header_1_0
    shape, order, kind = read(file)
    if any(n < 0 for n in shape):
        raise ValueError(f"shape {shape}")
    return shape, order, kind


@contextmanager
def _opened_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; whatever is wrong with it or its arrays is a FileError."""
    try:
        with path.open("rb") as file:
            _check_directory(path, file)
            # Read here and not by numpy.load, which may run code from an archive when asked to.
            with zipfile.ZipFile(file) as archive:
                yield archive
    except HydraNetError:
        raise
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    except Exception as error:  # zipfile, zlib, lzma and NumPy's header parser have many
        reason = str(error) or type(error).__name__
        raise FileError(path, f"is not a usable .npz archive: {reason}") from error


def _check_directory(path: Path, file: IO[bytes]) -> None:
    """Refuse a table of contents that would take long or much memory to read."""
    if file.read(6) == npy.MAGIC_PREFIX:
        raise FileError(path, "is a single array, not an .npz archive: use numpy.savez")
    size = file.seek(0, 2)
    file.seek(max(0, size - (1 << 16) - 64))
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0:
        raise ValueError("it has no table of contents")
    if struct.unpack_from("<I", tail, at + 12)[0] > LARGEST_DIRECTORY or b"PK\6\7" in tail:
        raise FileError(path, "has too many arrays, or is larger than 4 GB")
    file.seek(0)


def read_covariances(source: str, count: int, size: int | None = None) -> Array:
    """Read (count, 3, 3) or (count, 6, 6) covariances of frame-to-frame motion: `FILE.npz:KEY`."""
    array = read_npz_array(source, *((count, n, n) for n in ((3, 6) if size is None else (size,))))
    _reject(source, ~np.isfinite(array).all(axis=(1, 2)), None, "is not finite")
    transposed = np.swapaxes(array, -1, -2)
    skew, largest = (np.abs(each).max(axis=(1, 2)) for each in (array - transposed, array))
    _reject(source, skew > SYMMETRY_TOLERANCE * largest, None, "is not symmetric: no covariance")
    symmetric = 0.5 * (array + transposed)
    _reject(source, ~_is_positive(symmetric), None, "is not positive definite")
    return symmetric


def _is_positive(symmetric: Array) -> NDArray[np.bool_]:
    """Whether matrices are positive definite, and not so near to it that inverses overflow."""
    with np.errstate(all="ignore"):
        values = np.linalg.eigvalsh(symmetric)
    return np.asarray((values[:, 0] > 1e-30) & (values[:, -1] < 1e30))


def _read_numbers(path: Path) -> tuple[Array, list[int]]:
    """All rows of numbers of a text file, and the line each stands on."""
    numbers, lines = array("d"), []
    columns: int | None = None
    for number, line in read_lines(path):
        content = line.split("#", 1)[0].replace(",", " ").split()
        if not content:
            continue
        numbers.extend(_row(path, number, content, columns))
        columns = len(content)
        lines.append(number)
    if columns is None:
        raise FileError(path, "is empty: no pose in it")
    return np.array(numbers).reshape(-1, columns), lines


def _row(path: Path, line: int, content: list[str], columns: int | None) -> list[float]:
    first = (KITTI_COLUMNS, TUM_COLUMNS, EUROC_COLUMNS)
    expected = first if columns is None else (columns,)
    if len(content) not in expected:
        wanted = (
            f"{KITTI_COLUMNS} numbers (KITTI), {TUM_COLUMNS} (TUM) or {EUROC_COLUMNS} (EuRoC)"
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
    _reject(str(path), ~(np.abs(xyzw) < 2.0).all(axis=1), lines, "has no quaternion")
    norms = np.linalg.norm(xyzw, axis=1)
    _reject(
        str(path), ~(np.abs(norms - 1.0) < 1e-2), lines, "has a quaternion that is not of length 1"
    )
    wxyz = np.roll(xyzw, 1, axis=1) / norms[:, None]
    return lie.se3_from(lie.quaternion_to_matrix(wxyz), numbers[:, 1:4])


def _stamps(path: Path, numbers: Array, lines: list[int]) -> Stamps:
    seconds = numbers[:, 0]
    far = ~(np.abs(seconds) < LATEST_S)
    _reject(str(path), far, lines, "has a stamp that is not finite, or beyond 9e9 s")
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
    far = ~(np.abs(poses) < FARTHEST_M).all(axis=(1, 2))
    _reject(name, far, lines, f"is more than {FARTHEST_M:g} m away")
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
