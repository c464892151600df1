from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.odometer import chain
from hydranet_ros.geometry.trajectory import (
    Trajectory,
    associate,
    read_covariances,
    read_trajectory,
    write_kitti,
    write_tum,
)


def random_walk(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    steps = lie.se3_exp(rng.normal(size=(count - 1, 6)) * [0.1, 0.1, 1.0, 0.01, 0.05, 0.01])
    return chain(steps, lie.se3_exp(rng.normal(size=6)))


KITTI_LINE = "1 0 0 0 0 1 0 0 0 0 1 0"
TUM_LINE = "1.5 1 2 3 0 0 0 1"


def test_kitti_file_round_trip(tmp_path: Path) -> None:
    poses = random_walk(20)
    write_kitti(tmp_path / "poses.txt", poses)
    read = read_trajectory(tmp_path / "poses.txt")
    np.testing.assert_allclose(read.T_w_c, poses, atol=1e-10)
    assert read.stamps_ns is None


def test_tum_file_keeps_nanoseconds_of_short_stamps_and_orders_the_quaternion(tmp_path) -> None:
    poses = random_walk(5)
    stamps = [0, 100_000_001, 200_000_000, 1_000_000_007, 3_000_000_000]
    write_tum(tmp_path / "poses.tum", poses, stamps)
    read = read_trajectory(tmp_path / "poses.tum")
    np.testing.assert_allclose(read.T_w_c, poses, atol=1e-10)
    assert read.stamps_ns is not None
    np.testing.assert_array_equal(read.stamps_ns, stamps)
    first = np.loadtxt(tmp_path / "poses.tum")[0]
    np.testing.assert_allclose(Rotation.from_quat(first[4:]).as_matrix(), poses[0, :3, :3])


def test_real_ground_truth_reads(data: Path) -> None:
    trajectory = read_trajectory(data / "kitti" / "poses" / "09.txt")
    assert len(trajectory) == 600
    np.testing.assert_allclose(trajectory.T_w_c[0], np.eye(4), atol=1e-6)


def test_chain_inverts_frame_to_frame() -> None:
    poses = random_walk(50)
    again = chain(Trajectory(poses, None, "walk").T_2_1, poses[0])
    np.testing.assert_allclose(again, poses, atol=1e-12)


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        ("", None, "empty"),
        ("# only a comment\n\n", None, "empty"),
        ("1 2 3\n", 1, "expected 12 numbers (KITTI), 8 (TUM) or 17 (EuRoC), got 3"),
        (f"{KITTI_LINE}\n{TUM_LINE}\n", 2, "expected 12 numbers as on the first line, got 8"),
        (f"{KITTI_LINE}\n\n{KITTI_LINE[:-1]}x\n", 3, "could not convert"),
        (f"{KITTI_LINE}\n{KITTI_LINE[:-1]}nan\n", 2, "row 1 is not finite"),
        ("2 0 0 0 0 1 0 0 0 0 1 0\n", 1, "not a rigid-body pose"),
        ("1 0 0 0 0 1 0 0 0 0 -1 0\n", 1, "not a rigid-body pose"),
        ("1.5 1 2 3 0 0 0 0\n", 1, "quaternion that is not of length 1"),
        ("1.5 1 2 3 0 0 0 nan\n", 1, "has no quaternion"),
        (f"{TUM_LINE}\n{TUM_LINE}\n", 2, "not later than the one before"),
        ("inf 1 2 3 0 0 0 1\n", 1, "stamp that is not finite"),
    ],
)
def test_bad_text_files_are_named_with_line_and_reason(
    tmp_path: Path, content: str, line: int | None, why: str
) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(content)
    with pytest.raises(FileError) as caught:
        read_trajectory(path)
    where = f"{path}:{line}: " if line is not None else f"{path}: "
    assert str(caught.value).startswith(where)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_name(tmp_path_factory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(content)
    try:
        read_trajectory(path)
    except FileError as error:
        message = str(error)
    else:
        return
    assert str(path) in message


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"absent\.txt: cannot be read: No such file"):
        read_trajectory(tmp_path / "absent.txt")


def save(tmp_path: Path, **arrays: np.ndarray) -> str:
    np.savez(tmp_path / "file.npz", **arrays)
    return str(tmp_path / "file.npz")


def test_npz_arrays_are_read_by_key(tmp_path: Path) -> None:
    poses = random_walk(7)
    source = save(tmp_path, a=poses, b=poses[::-1])
    np.testing.assert_allclose(read_trajectory(f"{source}:b").T_w_c, poses[::-1], atol=1e-12)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "needs the name of an array: name one as FILE.npz:KEY, of cut, empty, poses, text"),
        (":absent", "has no array 'absent'"),
        (":cut", "expected poses of shape (N, 4, 4), got (3, 3, 4)"),
        (":empty", "is empty"),
        (":text", "not of real numbers"),
    ],
)
def test_bad_npz_keys_say_why(tmp_path: Path, key: str, why: str) -> None:
    source = save(
        tmp_path,
        poses=random_walk(3),
        cut=random_walk(3)[:, :3],
        empty=np.zeros((0, 4, 4)),
        text=np.array(["a"]),
    )
    with pytest.raises(FileError) as caught:
        read_trajectory(source + key)
    assert why in str(caught.value)
    assert "file.npz" in str(caught.value)


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    path.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(FileError, match=r"file\.npz: "):
        read_trajectory(f"{path}:a")


def test_pickled_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "file.npz", a=np.array([{"run": "me"}], dtype=object))
    with pytest.raises(FileError, match="'a' is of type object, not of real numbers"):
        read_trajectory(f"{tmp_path / 'file.npz'}:a")


def test_covariances_are_checked(tmp_path: Path) -> None:
    good = np.tile(np.eye(6), (4, 1, 1))
    indefinite = good.copy()
    indefinite[2, 0, 0] = -1.0
    not_finite = good.copy()
    not_finite[1, 0, 0] = np.nan
    source = save(tmp_path, good=good, indefinite=indefinite, nan=not_finite)
    np.testing.assert_array_equal(read_covariances(f"{source}:good", 4), good)
    for key, count, why in [
        ("good", 5, "expected shape"),
        ("indefinite", 4, "row 2 is not positive definite"),
        ("nan", 4, "row 1 is not finite"),
    ]:
        with pytest.raises(FileError, match=why):
            read_covariances(f"{source}:{key}", count)


def stamped(stamps: list[int], name: str) -> Trajectory:
    poses = random_walk(50)[: len(stamps)]
    return Trajectory(poses, np.array(stamps, dtype=np.int64), name)


def test_association_takes_the_nearest_stamp_within_the_tolerance() -> None:
    estimate = stamped([0, 100, 205, 290, 900], "estimate")
    truth = stamped([-3, 98, 104, 200, 297, 500], "truth")
    a, b = associate(estimate, truth, tolerance_s=10e-9)
    assert a.stamps_ns is not None
    assert b.stamps_ns is not None
    assert a.stamps_ns.tolist() == [0, 100, 205, 290]
    assert b.stamps_ns.tolist() == [-3, 98, 200, 297]


def test_association_without_common_stamps_fails() -> None:
    with pytest.raises(HydraNetError, match=r"a and b have no stamps within 0.01 s"):
        associate(stamped([0, 1], "a"), stamped([10**12], "b"))


def test_association_by_row_needs_equal_lengths() -> None:
    walk = random_walk(6)
    with pytest.raises(HydraNetError, match="a has 6 poses and b has 5"):
        associate(Trajectory(walk, None, "a"), Trajectory(walk[:5], None, "b"))


def test_poses_between_stamps_lie_on_the_way() -> None:
    stamps = np.array([0, 10, 20, 30, 1000, 1010]) * 10**7
    s = stamps[:, None] * 1e-9
    T = lie.se3_from(lie.so3_exp(s * [0.0, 0.1, 0.2]), s * [1.0, 0.0, 2.0])
    path = Trajectory(T, stamps, "path")
    wanted = np.array([-1, 0, 5, 17, 30, 500, 1004, 1010, 1011]) * 10**7
    found = path.at(wanted)
    unknown = np.isnan(found).all(axis=(1, 2))
    # Before, in the long gap, and after.
    assert unknown.tolist() == [True, False, False, False, False, True, False, False, True]
    assert np.isfinite(found[~unknown]).all()
    s = wanted[~unknown, None] * 1e-9
    expected = lie.se3_from(lie.so3_exp(s * [0.0, 0.1, 0.2]), s * [1.0, 0.0, 2.0])
    np.testing.assert_allclose(found[~unknown], expected, atol=1e-9)
    assert np.isfinite(path.at(stamps[-1:] + 500)).all()  # the same instant, rounded
    assert np.isnan(path.select(np.array([0])).at(wanted)[2]).all()
    with pytest.raises(ValueError, match="no stamps"):
        Trajectory(T, None, "rows").at(wanted)


def test_a_file_of_euroc(tmp_path: Path) -> None:
    T = lie.se3_from(lie.so3_exp([[0.1, 0.2, 0.3], [0.2, 0.1, 0.0]]), [[1.0, 2, 3], [4, 5, 6]])
    wxyz = lie.quaternion_from_matrix(T[:, :3, :3])
    rows = [
        f"{10**18 + i * 10**9}," + ",".join(map(str, [*T[i, :3, 3], *wxyz[i], *[0.0] * 9]))
        for i in range(2)
    ]
    (tmp_path / "data.csv").write_text("#timestamp,...\n" + "\n".join(rows))
    found = read_trajectory(tmp_path / "data.csv")
    np.testing.assert_allclose(found.T_w_c, T, atol=1e-12)
    assert found.stamps_ns is not None
    assert np.abs(found.stamps_ns - [10**18, 10**18 + 10**9]).max() < 500
