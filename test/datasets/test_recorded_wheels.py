from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hydranet_ros.datasets.wheels import WheelsConfig, read_odometry
from hydranet_ros.errors import FileError
from hydranet_ros.geometry import lie

T_C_B = lie.se3_inverse(WheelsConfig().T_b_c)


def of_base(motion) -> np.ndarray:
    """Log of the motion of the base, forward in time."""
    return lie.se3_log(lie.se3_inverse(lie.se3_inverse(T_C_B) @ motion.T_2_1 @ T_C_B))


def test_counts_of_wheels(tmp_path: Path) -> None:
    """Ten counts forward, then a turn to the left on the spot; the last stamp is doubled."""
    file = tmp_path / "wheel.csv"
    file.write_text(
        "# t,FR,FL,RR,RL\n1.0,0,0,0,0\n1.025,10,10,10,10\n1.05,5,-5,5,-5\n1.05,9,9,9,9\n"
    )
    motions = read_odometry(file, WheelsConfig())
    assert [(m.stamp_1_ns, m.stamp_2_ns) for m in motions] == [
        (1_000_000_000, 1_025_000_000),
        (1_025_000_000, 1_050_000_000),
    ]
    np.testing.assert_allclose(of_base(motions[0]), [0.0222, 0, 0, 0, 0, 0], atol=1e-12)
    turned = 2 * 5 * 0.00222 / 0.75
    np.testing.assert_allclose(of_base(motions[1]), [0, 0, 0, 0, 0, turned], atol=1e-12)
    sigmas = np.sqrt(np.diag(motions[0].Sigma_2_1))
    assert sigmas[2] < 1e-3, "forward is the camera's z"
    assert sigmas[1] > 0.5, "nothing is known of up and down"
    assert sigmas[4] < 2e-3
    assert sigmas[3] > 0.05


def test_what_rows_with_a_doubled_stamp_count_is_in_the_next(tmp_path: Path) -> None:
    rows = [f"{stamp},10,12,10,12" for stamp in (1.0, 1.1, 1.1, 1.05, 1.2, 1.3, 1.3, 1.4)]
    (tmp_path / "wheel.csv").write_text("\n".join(rows))
    motions = read_odometry(tmp_path / "wheel.csv", WheelsConfig())
    assert [m.stamp_2_ns // 10**6 for m in motions] == [1100, 1200, 1300, 1400]
    ways = [np.linalg.norm(of_base(m)[:3]) / (11 * 0.00222) for m in motions]
    np.testing.assert_allclose(ways, [1.0, 3.0, 1.0, 2.0])
    turns = [of_base(m)[5] for m in motions]
    np.testing.assert_allclose(turns, np.array([1.0, 3.0, 1.0, 2.0]) * -2 * 0.00222 / 0.75)


@pytest.mark.parametrize("numbers", [0, 21, 36])
def test_poses_with_and_without_covariances(tmp_path: Path, numbers: int) -> None:
    Sigma = np.diag([1e-4, 2e-4, 3e-4, 1e-6, 2e-6, 3e-6])
    Sigma[0, 5] = Sigma[5, 0] = 5e-6
    given = {0: [], 21: Sigma[np.triu_indices(6)].tolist(), 36: Sigma.ravel().tolist()}[numbers]
    extra = " ".join(f"{value:.9g}" for value in given)
    half = np.sqrt(0.5)
    file = tmp_path / "odom.txt"
    file.write_text(f"1 0 0 0 0 0 0 1 {extra}\n2 3 0 0 0 0 {half} {half} {extra}\n")
    (motion,) = read_odometry(file, WheelsConfig())
    T = lie.se3_inverse(lie.se3_inverse(T_C_B) @ motion.T_2_1 @ T_C_B)
    np.testing.assert_allclose(T[:3, 3], [3, 0, 0], atol=1e-9)
    np.testing.assert_allclose(lie.so3_log(T[:3, :3]), [0, 0, np.pi / 2], atol=1e-6)
    adjoint = lie.se3_adjoint(lie.se3_inverse(T_C_B))
    back = adjoint @ motion.Sigma_2_1 @ adjoint.T
    expected = Sigma if numbers else np.diag([10 * 0.02**2] * 3 + [10 * np.deg2rad(0.1) ** 2] * 3)
    np.testing.assert_allclose(back, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "1,0,0,0\n2,0,0,0\n", "four wheels"),
        ("a.csv", "1,0,0,0,x\n", "line 1 is not a row of numbers"),
        ("a.csv", "1,0,0,0,0\n", "fewer than two rows"),
        ("a.csv", "1,0,0,0,0\n2,inf,0,0,0\n", "line 2"),
        ("a.txt", "1 0 0 0 0 0 0 0\n2 0 0 0 0 0 0 1\n", "quaternion"),
        ("a.txt", "1 0 0 0 0 0 0 1\n2 0 0 0 0 0 0 1 5\n", "9 numbers"),
        ("a.txt", f"1 0 0 0 0 0 0 1\n2 0 0 0 0 0 0 1{' 0' * 21}\n", "ends at 2.000 s: Sigma"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError, match=said):
        read_odometry(tmp_path / name, WheelsConfig())


def test_the_robot_of_the_data(data: Path) -> None:
    """It turns about half a degree a row at most, and never faster than it can."""
    motions = read_odometry(data / "robot" / "wheel.csv", WheelsConfig())
    assert len(motions) > 4000
    rates = [np.linalg.norm(lie.so3_log(m.T_2_1[:3, :3])) / m.seconds for m in motions]
    assert np.percentile(rates, 99) < 3.0
