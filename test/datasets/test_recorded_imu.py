from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hydranet_ros.datasets.imu import euroc_mount, read_imu
from hydranet_ros.errors import FileError
from hydranet_ros.fusion.imu import STANDARD_GRAVITY, ImuBuffer, ImuConfig
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.trajectory import read_trajectory

C = np.array([[0.0, -1.0, 0.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]])


def test_seconds_and_g(tmp_path: Path) -> None:
    """Doubled stamps are left out, and the axes are turned to those of the camera."""
    file = tmp_path / "imu.csv"
    file.write_text("# t,w,a\n1.0,1,2,3,0,0,1\n1.0,9,9,9,0,0,1\n1.01,1,2,3,0,0.5,0.9\n")
    first, second = read_imu(file, C)
    assert (first.stamp_ns, second.stamp_ns) == (1_000_000_000, 1_010_000_000)
    np.testing.assert_allclose(first.rate, [-2.0, -3.0, 1.0])
    np.testing.assert_allclose(first.acceleration, [0.0, -STANDARD_GRAVITY, 0.0])


def test_nanoseconds_and_metres(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text(
        "#timestamp [ns],w,a\n1403636628763555584,0,0,1,0,0,9.8\n"
        "1403636628768555584,0,0,1,0,0,9.9\n"
    )
    samples = read_imu(file, np.eye(3))
    assert samples[1].stamp_ns == 1403636628768555584
    np.testing.assert_allclose(samples[0].acceleration, [0.0, 0.0, 9.8])


def test_nanoseconds_as_numpy_writes_them(tmp_path: Path) -> None:
    """They are rounded to what a float holds."""
    stamps = [1403636628763555584, 1403636628768555584]
    np.savetxt(tmp_path / "imu.csv", [[stamp, 0, 0, 1, 0, 0, 9.8] for stamp in stamps])
    assert (tmp_path / "imu.csv").read_text().startswith("1.403636628763555584e+18")
    found = [sample.stamp_ns for sample in read_imu(tmp_path / "imu.csv", np.eye(3))]
    np.testing.assert_allclose(found, stamps, rtol=0.0, atol=256)


@pytest.mark.parametrize(
    "text",
    ["", "1.0,1,2,3,0,0,1\n", "1.0,1,2\n2.0,1,2\n", "a,b\n", "1,nan,0,0,0,0,1\n2,0,0,0,0,0,1\n"],
)
def test_what_is_no_imu_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "imu.csv"
    file.write_text(text)
    with pytest.raises(FileError):
        read_imu(file, np.eye(3))


def test_euroc_turns_as_its_truth_does(data: Path) -> None:
    """Over a second, in the axes of the body, and in those of the left camera."""
    folder = data / "euroc"
    if not folder.is_dir():
        pytest.skip("no data of EuRoC here")
    file = folder / "mav0" / "imu0" / "data.csv"
    truth = read_trajectory(folder / "groundtruth.txt")
    assert truth.stamps_ns is not None
    begin, end = 100, 400
    C_2_1 = truth.T_w_c[end, :3, :3].T @ truth.T_w_c[begin, :3, :3]
    mount = euroc_mount(file)
    assert mount is not None
    for turned in (np.eye(3), mount):
        buffer = ImuBuffer(ImuConfig(), 1e3)
        for sample in read_imu(file, turned):
            buffer.add(sample)
        span = int(truth.stamps_ns[begin]), int(truth.stamps_ns[end])
        found = buffer.turn(*span, np.zeros(3))
        assert found is not None
        error = lie.so3_log(turned.T @ found.C @ turned @ C_2_1.T)
        # Its biases are up to 0.08 rad/s; they are what is left.
        assert np.linalg.norm(error) / ((span[1] - span[0]) * 1e-9) < 0.12
