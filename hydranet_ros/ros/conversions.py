"""Estimates to messages and back.

Ours is the left perturbation of T_2_1 (or T_c_w); a message holds T_1_2 (or T_w_c). Perturbing
T_2_1 on the left by xi is perturbing T_1_2 on the right, in its child frame, by -xi:

    T_w_c = T_w_c_mean Exp(-xi)    position p - R rho, rotation Exp(-R phi) R, to first order

A ROS pose covariance is of the position and of rotations about the fixed axes of the header's
frame, so it is A Sigma A^T with A = diag(R_w_c, R_w_c). A twist covariance is in the child frame,
so it is Sigma / dt^2 as it stands.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Pose, PoseWithCovarianceStamped, Twist
from nav_msgs.msg import Odometry
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image, Imu, TimeReference
from std_msgs.msg import Header

from hydranet_ros.datasets.depth_images import Depth, depth_of_compressed, depth_of_raw
from hydranet_ros.datasets.sensor_messages import (
    Grey,
    PixelRange,
    check_layout,
    grey_of_compressed,
    grey_of_raw,
)
from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.twist_agreement import OdometrySample
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array

try:
    from cv_bridge import CvBridge
except ImportError:  # not with the wheels
    CvBridge = None

# Of a position that was not measured. Finite, for filters that invert it.
UNKNOWN_VARIANCE = 1e6


def stamp_ns(stamp: Time) -> int:
    """Nanoseconds of a message's stamp."""
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def time_message(nanoseconds: int) -> Time:
    """A message's stamp of nanoseconds."""
    sec, nanosec = divmod(nanoseconds, 1_000_000_000)
    return Time(sec=sec, nanosec=nanosec)


def header(nanoseconds: int, frame: str) -> Header:
    """A header."""
    return Header(stamp=time_message(nanoseconds), frame_id=frame)


# --- poses ---------------------------------------------------------------------------------------


def pose_message(T: Array) -> Pose:
    """T_a_b as the pose of b in a."""
    pose = Pose()
    p = pose.position
    p.x, p.y, p.z = (float(v) for v in T[:3, 3])
    q = pose.orientation
    q.w, q.x, q.y, q.z = (float(v) for v in lie.quaternion_from_matrix(T[:3, :3]))
    return pose


def pose_matrix(pose: Pose) -> Array:
    """The pose of b in a as T_a_b; a BadInput where it is none."""
    p, q = pose.position, pose.orientation
    position, quaternion = np.array([p.x, p.y, p.z]), np.array([q.w, q.x, q.y, q.z])
    if not np.isfinite(position).all() or not np.isfinite(quaternion).all():
        raise BadInput("lost", "pose is not finite: its source is lost")
    norm = float(np.linalg.norm(quaternion))
    if abs(norm - 1.0) > 1e-2:
        raise BadInput("lost", f"pose has a quaternion of length {norm:.3g}: its source is lost")
    return lie.se3_from(lie.quaternion_to_matrix(quaternion / norm), position)


def fixed_axes(R_w_c: Array, Sigma_c_w: Array) -> Array:
    """The ROS covariance of a pose from the left perturbation of its inverse."""
    A = np.kron(np.eye(2), R_w_c)
    return A @ Sigma_c_w @ A.T


def left_of_inverse(R_w_c: Array, covariance: Array) -> Array:
    """Sigma_c_w from the ROS covariance of T_w_c."""
    A = np.kron(np.eye(2), R_w_c)
    return A.T @ covariance @ A


def pose_estimate(message: PoseWithCovarianceStamped) -> tuple[Array, Array]:
    """T_w_b and Sigma_b_w; a BadInput where they are none. Variances of 0 mean certain."""
    T_w_b = pose_matrix(message.pose.pose)
    covariance = covariance_matrix(message.pose.covariance)
    symmetric = np.isfinite(covariance).all() and np.allclose(covariance, covariance.T)
    if not symmetric or np.linalg.eigvalsh(covariance)[0] < -1e-9:
        raise BadInput(
            "covariance",
            "pose has a covariance that is none: it is not symmetric, "
            "finite and without negative variances",
        )
    return T_w_b, left_of_inverse(T_w_b[:3, :3], covariance)


# --- rotations -----------------------------------------------------------------------------------


def rotation_message(
    rotation: RelativeRotation, frame: str, covariance: Array | None = None
) -> PoseWithCovarianceStamped:
    """The orientation R_1_2 of camera 2 in camera 1; its position is not known.

    `covariance` is Sigma_2_1 unless another part of it is given.
    """
    R_1_2 = rotation.C_2_1.T
    Sigma = rotation.Sigma_2_1 if covariance is None else covariance
    message = PoseWithCovarianceStamped(header=header(rotation.stamp_2_ns, frame))
    message.pose.pose = pose_message(lie.se3_from(R_1_2, np.zeros(3)))
    full = np.eye(6) * UNKNOWN_VARIANCE
    full[3:, 3:] = R_1_2 @ Sigma @ R_1_2.T
    message.pose.covariance = full.ravel()
    return message


def interval_message(rotation: RelativeRotation, frame: str) -> TimeReference:
    """The two stamps that a rotation spans: header.stamp is the later one.

    `source` tells what persists of the covariance, xx xy xz yy yz zz in the axes of the later
    camera, and for how long: whoever fuses the rotation needs it, and one message less to match.
    """
    source = "stamp of the earlier image"
    if rotation.persistent is not None:
        part = " ".join(repr(float(rotation.persistent[i, j])) for i, j in _UPPER)
        source += f"; persistent for {rotation.persistent_s!r} s (rad^2): {part}"
    return TimeReference(
        header=header(rotation.stamp_2_ns, frame),
        time_ref=time_message(rotation.stamp_1_ns),
        source=source,
    )


_UPPER = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
_PERSISTENT = re.compile(r"; persistent for (\S+) s \(rad\^2\): (\S+(?: \S+){5})")


def _persistent(interval: TimeReference) -> tuple[Array | None, float]:
    """What an interval tells of its rotation's covariance; a ValueError where it is no number."""
    told = _PERSISTENT.search(interval.source)
    if told is None:
        return None, 0.0
    part = np.zeros((3, 3))
    for (i, j), word in zip(_UPPER, told[2].split(), strict=True):
        part[i, j] = part[j, i] = float(word)
    return part, float(told[1])


def rotation_from(message: PoseWithCovarianceStamped, interval: TimeReference) -> RelativeRotation:
    """The estimate again; a BadInput where it is none."""
    R_1_2 = pose_matrix(message.pose.pose)[:3, :3]
    full = np.array(message.pose.covariance, dtype=np.float64).reshape(6, 6)
    start, end = stamp_ns(interval.time_ref), stamp_ns(message.header.stamp)
    try:
        part, seconds = _persistent(interval)
        Sigma_2_1 = R_1_2.T @ full[3:, 3:] @ R_1_2
        return RelativeRotation(R_1_2.T, Sigma_2_1, start, end, None, part, seconds)
    except ValueError as error:
        raise BadInput("rotation", f"rotation cannot be used: {error}") from None


def imu_message(rotation: RelativeRotation, frame: str) -> Imu:
    """The mean rate over the interval, Log(R_1_2) / dt, with covariance Sigma / dt^2."""
    dt = (rotation.stamp_2_ns - rotation.stamp_1_ns) * 1e-9
    message = Imu(header=header(rotation.stamp_2_ns, frame))
    rate = message.angular_velocity
    rate.x, rate.y, rate.z = (float(v) for v in -lie.so3_log(rotation.C_2_1) / dt)
    message.angular_velocity_covariance = (rotation.Sigma_2_1 / dt**2).ravel()
    # REP 145: -1 says that there is no such measurement.
    message.orientation_covariance[0] = -1.0
    message.linear_acceleration_covariance[0] = -1.0
    return message


# --- odometry ------------------------------------------------------------------------------------


def odometry_message(
    nanoseconds: int,
    frames: tuple[str, str],
    T_w_b: Array,
    Sigma_b_w: Array,
    velocity: Array,
    Sigma_velocity: Array,
) -> Odometry:
    """Pose of `frames[1]` in `frames[0]`; velocity (m/s, rad/s) in the child frame."""
    message = Odometry(header=header(nanoseconds, frames[0]), child_frame_id=frames[1])
    message.pose.pose = pose_message(T_w_b)
    message.pose.covariance = fixed_axes(T_w_b[:3, :3], Sigma_b_w).ravel()
    linear, angular = message.twist.twist.linear, message.twist.twist.angular
    linear.x, linear.y, linear.z = (float(v) for v in velocity[:3])
    angular.x, angular.y, angular.z = (float(v) for v in velocity[3:])
    message.twist.covariance = np.ascontiguousarray(Sigma_velocity).ravel()
    return message


def odometry_sample(message: Odometry) -> OdometrySample:
    """Odometry as the fusion reads it; a BadInput where it has no pose, or no name."""
    if not message.child_frame_id:
        raise BadInput("frames", "odometry has no child_frame_id: its source must name one")
    T_w_b = pose_matrix(message.pose.pose)
    return OdometrySample(
        stamp_ns(message.header.stamp),
        message.child_frame_id,
        T_w_b,
        left_of_inverse(T_w_b[:3, :3], covariance_matrix(message.pose.covariance)),
        _twist(message.twist.twist),
        covariance_matrix(message.twist.covariance),
    )


def _twist(twist: Twist) -> Array:
    """(6,) m/s, rad/s."""
    parts = (twist.linear, twist.angular)
    return np.array([getattr(part, axis) for part in parts for axis in "xyz"])


def covariance_matrix(values: Array) -> Array:
    """The 6 x 6 matrix of a message's 36 numbers."""
    return np.array(values, dtype=np.float64).reshape(6, 6)


# --- images --------------------------------------------------------------------------------------

ImageMessage: TypeAlias = Image | CompressedImage

# What cv_bridge takes for colours; the others have no colour to it, and it refuses them. Of 16
# bits it takes all, and leaves 12-bit images black.
_BRIDGED = {"mono8", "bgr8", "rgb8", "bgra8", "rgba8"}


def grey(message: ImageMessage, white: PixelRange | None = None) -> Grey:
    """A grey image, or a BadInput that says what is wrong with the message.

    `white` is the range of the stream's pixels, where they have more than 8 bits.
    """
    if isinstance(message, CompressedImage):
        return grey_of_compressed(message, white)
    if CvBridge is not None and message.encoding in _BRIDGED:
        check_layout(message)
        return np.asarray(CvBridge().imgmsg_to_cv2(message, "mono8"), dtype=np.uint8)
    return grey_of_raw(message, white)


def depth(message: ImageMessage) -> Depth:
    """Depth in metres, 0 where there is none, or a BadInput."""
    if isinstance(message, CompressedImage):
        return depth_of_compressed(message)
    return depth_of_raw(message)


def image_message(pixels: NDArray[np.uint8], encoding: str = "mono8") -> Image:
    """(h, w) or (h, w, channels) uint8 to a message, without its header."""
    height, width = pixels.shape[:2]
    step = width * (1 if pixels.ndim == 2 else pixels.shape[2])
    # As bytes: the setter checks any other sequence number by number.
    data = np.ascontiguousarray(pixels).tobytes()
    return Image(height=height, width=width, encoding=encoding, step=step, data=data)


# --- classes of messages by the names that bags give them ----------------------------------------


def message_class(name: str) -> Any | None:
    """The class of, say, `sensor_msgs/msg/Image`; None where its package is not installed."""
    package, kind, message = name.split("/")
    try:
        return getattr(import_module(f"{package}.{kind}"), message)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != package:
            raise
        return None
