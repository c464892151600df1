"""Covariances in messages mean what ROS says they mean: shown by sampling."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from geometry_msgs.msg import PoseWithCovarianceStamped

from hydranet_ros.errors import BadInput, HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativeRotation, change_frame
from hydranet_ros.ros import conversions as c

SAMPLES = 200_000
START, END = 1_700_000_000_123_456_789, 1_700_000_000_223_456_790


def covariance(rng: np.random.Generator, size: int, sigma: float) -> np.ndarray:
    root = rng.normal(size=(size, size)) * sigma
    return root @ root.T + np.eye(size) * (0.3 * sigma) ** 2


def rotation(seed: int = 0, sigma: float = 0.01) -> RelativeRotation:
    rng = np.random.default_rng(seed)
    Sigma = covariance(rng, 3, sigma)
    return RelativeRotation(
        lie.so3_exp(rng.normal(size=3) * 0.5), Sigma, START, END, epistemic=0.3 * Sigma
    )


def sampled(values: np.ndarray) -> np.ndarray:
    return values.T @ values / len(values)


def agree(found: np.ndarray, expected: np.ndarray) -> None:
    """Within the noise of the samples, and far from what a wrong frame would give."""
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs((found - expected) / scale).max() < 0.015


def test_a_pose_covariance_is_about_fixed_axes() -> None:
    rng = np.random.default_rng(1)
    Sigma_c_w = covariance(rng, 6, 0.01)
    T_c_w = lie.se3_exp([5.0, -3.0, 2.0, 0.7, -1.1, 0.4])
    T_w_c = lie.se3_inverse(T_c_w)
    xi = rng.multivariate_normal(np.zeros(6), Sigma_c_w, SAMPLES)
    drawn = lie.se3_inverse(lie.se3_exp(xi) @ T_c_w)
    offsets = drawn[:, :3, 3] - T_w_c[:3, 3]
    turns = lie.so3_log(drawn[:, :3, :3] @ T_w_c[:3, :3].T)  # about the axes of the header's frame
    message = c.odometry_message(END, ("odom", "base"), T_w_c, Sigma_c_w, np.zeros(6), np.eye(6))
    stated = c.covariance_matrix(message.pose.covariance)
    agree(sampled(np.hstack([offsets, turns])), stated)
    np.testing.assert_allclose(c.left_of_inverse(T_w_c[:3, :3], stated), Sigma_c_w, atol=1e-16)


def test_a_twist_covariance_is_in_the_child_frame() -> None:
    rng = np.random.default_rng(2)
    dt, Sigma_2_1 = 0.1, covariance(rng, 6, 0.001)
    T_2_1 = lie.se3_exp(np.array([0.01, -0.005, 0.02, 0.02, -0.01, 0.03]))
    xi = rng.multivariate_normal(np.zeros(6), Sigma_2_1, SAMPLES)
    drawn = -lie.se3_log(lie.se3_exp(xi) @ T_2_1) / dt
    deviations = drawn + lie.se3_log(T_2_1) / dt
    scale = np.sqrt(np.diag(Sigma_2_1)) / dt
    # To first order in the motion, which turns by 2 deg here.
    difference = sampled(deviations) - Sigma_2_1 / dt**2
    assert np.abs(difference / np.outer(scale, scale)).max() < 0.1


def test_another_frame_on_the_same_body_has_the_adjoint_covariance() -> None:
    rng = np.random.default_rng(3)
    Sigma = covariance(rng, 6, 0.003)
    T_b_c, T_2_1 = lie.se3_exp(rng.normal(size=6)), lie.se3_exp(rng.normal(size=6) * 0.3)
    value, stated = change_frame(T_b_c, T_2_1, Sigma)
    xi = rng.multivariate_normal(np.zeros(6), Sigma, SAMPLES)
    drawn = T_b_c @ (lie.se3_exp(xi) @ T_2_1) @ lie.se3_inverse(T_b_c)
    agree(sampled(lie.se3_log(drawn @ lie.se3_inverse(value))), stated)


def test_a_rotation_message_is_the_later_camera_in_the_earlier_one() -> None:
    given = rotation(4, 0.01)
    message = c.rotation_message(given, "camera")
    R_1_2 = c.pose_matrix(message.pose.pose)[:3, :3]
    np.testing.assert_allclose(R_1_2, given.C_2_1.T, atol=1e-15)
    rng = np.random.default_rng(5)
    phi = rng.multivariate_normal(np.zeros(3), given.Sigma_2_1, SAMPLES)
    drawn = np.swapaxes(lie.so3_exp(phi) @ given.C_2_1, -1, -2)
    full = c.covariance_matrix(message.pose.covariance)
    agree(sampled(lie.so3_log(drawn @ R_1_2.T)), full[3:, 3:])
    assert (np.diag(full)[:3] == c.UNKNOWN_VARIANCE).all()
    assert not full[:3, 3:].any()


def test_a_rotation_survives_the_two_messages() -> None:
    given = rotation(6)
    back = c.rotation_from(
        c.rotation_message(given, "camera"), c.interval_message(given, "camera")
    )
    assert (back.stamp_1_ns, back.stamp_2_ns) == (START, END)
    np.testing.assert_allclose(back.C_2_1, given.C_2_1, atol=1e-15)
    np.testing.assert_allclose(back.Sigma_2_1, given.Sigma_2_1, rtol=1e-12, atol=1e-18)


def test_what_persists_survives_the_interval() -> None:
    Sigma = np.diag([4e-6, 2e-6, 1e-6]) + 1e-7
    given = RelativeRotation(lie.so3_exp([0.1, 0.2, 0.3]), Sigma, 5, 9, None, 0.3 * Sigma, 1.5)
    interval = c.interval_message(given, "camera")
    back = c.rotation_from(c.rotation_message(given, "camera"), interval)
    assert back.persistent is not None
    np.testing.assert_array_equal(back.persistent, given.persistent)
    assert back.persistent_s == 1.5
    for bad in ("nan", "1e9", "x"):
        interval.source = f"; persistent for 1.5 s (rad^2): {bad} 0 0 1e-9 0 1e-9"
        with pytest.raises(BadInput, match="rotation cannot be used"):
            c.rotation_from(c.rotation_message(given, "camera"), interval)
    interval.source = "somebody else's"
    assert c.rotation_from(c.rotation_message(given, "camera"), interval).persistent is None


def test_the_parts_of_a_covariance_add_up() -> None:
    given = rotation(7)
    whole, first, second = (
        c.covariance_matrix(c.rotation_message(given, "camera", part).pose.covariance)[3:, 3:]
        for part in (None, given.aleatoric, given.epistemic)
    )
    np.testing.assert_allclose(first + second, whole, rtol=1e-12)


def test_an_imu_message_is_the_rate_of_the_body() -> None:
    dt = (END - START) * 1e-9
    rate = np.array([0.02, -0.3, 0.05])
    # The body turns by Exp(rate dt), so points in its frame turn the other way.
    given = RelativeRotation(lie.so3_exp(-rate * dt), np.diag([1e-6, 2e-6, 3e-6]), START, END)
    message = c.imu_message(given, "camera")
    w = message.angular_velocity
    np.testing.assert_allclose([w.x, w.y, w.z], rate, rtol=1e-12)
    stated = np.array(message.angular_velocity_covariance).reshape(3, 3)
    np.testing.assert_allclose(stated, given.Sigma_2_1 / dt**2, rtol=1e-12)
    assert message.orientation_covariance[0] == -1.0
    assert message.linear_acceleration_covariance[0] == -1.0
    assert c.stamp_ns(message.header.stamp) == END


@pytest.mark.parametrize("seed", range(20))
def test_a_pose_survives_a_message(seed: int) -> None:
    T = lie.se3_exp(np.random.default_rng(seed).normal(size=6) * [100, 100, 100, 2, 2, 2])
    np.testing.assert_allclose(c.pose_matrix(c.pose_message(T)), T, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("field", "value"), [("w", 0.0), ("w", np.nan), ("x", np.inf), ("w", 2.0)]
)
def test_a_pose_that_is_none_is_refused(field: str, value: float) -> None:
    message = PoseWithCovarianceStamped()
    setattr(message.pose.pose.orientation, field, value)
    with pytest.raises(HydraNetError, match="lost"):
        c.pose_matrix(message.pose.pose)


def test_a_rotation_without_a_covariance_is_refused() -> None:
    given = rotation()
    message = c.rotation_message(given, "camera")
    message.pose.covariance = [0.0] * 36
    with pytest.raises(HydraNetError, match=r"rotation cannot be used: .*positive definite"):
        c.rotation_from(message, c.interval_message(given, "camera"))
