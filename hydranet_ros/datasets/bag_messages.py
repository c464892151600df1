"""Messages as bags hold them: a topic, a time, and the serialised bytes.

The same bytes go into a bag and over DDS, so that what `hydranet kitti2bag` writes and what
`hydranet play` publishes cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.datasets.source import Source
from hydranet_ros.errors import BadInput, HydraNetError, require
from hydranet_ros.fusion.imu import ImuSample
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import T_BASE_OPTICAL, Camera, Frame, Image, StereoCamera
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation, change_frame
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.odometer import LOST_VARIANCE
from hydranet_ros.geometry.trajectory import FARTHEST_M

require("a bag", "rosbags")

from rosbags.typesys import Stores, get_typestore

# The messages used here have been the same since Humble.
STORE = get_typestore(Stores.ROS2_JAZZY)

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
ODOMETRY = "nav_msgs/msg/Odometry"
IMU = "sensor_msgs/msg/Imu"
TRANSFORMS = "tf2_msgs/msg/TFMessage"


@dataclass(frozen=True)
class Message:
    """A serialised message and when it was recorded."""

    topic: str
    type: str
    stamp_ns: int
    data: bytes


def pack(topic: str, kind: str, stamp_ns: int, content: Any) -> Message:
    """Serialise a message of rosbags' own classes."""
    return Message(topic, kind, stamp_ns, bytes(STORE.serialize_cdr(content, kind)))


def unpack(message: Message) -> Any:
    """The content of a message; a BadInput where its bytes are not of its type."""
    try:
        return STORE.deserialize_cdr(message.data, message.type)
    except Exception as error:  # rosbags lets through what NumPy and struct have
        reason = f"a message of {message.topic} is damaged ({str(error) or type(error).__name__})"
        raise BadInput("message", reason) from error


def make(kind: str, **fields: Any) -> Any:
    """A message, or a part of one, by its type's name and all of its fields."""
    return STORE.types[kind](**fields)


def header(stamp_ns: int, frame_id: str) -> Any:
    """std_msgs/Header."""
    seconds, nanoseconds = divmod(stamp_ns, 10**9)
    stamp = make("builtin_interfaces/msg/Time", sec=seconds, nanosec=nanoseconds)
    return make("std_msgs/msg/Header", stamp=stamp, frame_id=frame_id)


def image(stamp_ns: int, frame_id: str, pixels: NDArray[np.uint8]) -> Any:
    """A grey image (h, w) as mono8."""
    height, width = pixels.shape
    return make(
        IMAGE,
        header=header(stamp_ns, frame_id),
        height=height,
        width=width,
        encoding="mono8",
        is_bigendian=0,
        step=width,
        data=np.ascontiguousarray(pixels).reshape(-1),
    )


def compressed_image(stamp_ns: int, frame_id: str, pixels: NDArray[np.uint8]) -> Any:
    """A grey image (h, w) as PNG, which loses nothing."""
    encoded, data = cv2.imencode(".png", pixels)
    if not encoded:
        raise HydraNetError(f"an image of {pixels.shape} pixels cannot be compressed as PNG")
    return make(
        COMPRESSED_IMAGE,
        header=header(stamp_ns, frame_id),
        format="mono8; png compressed mono8",
        data=np.asarray(data, dtype=np.uint8).reshape(-1),
    )


def camera_info(
    stamp_ns: int, frame_id: str, c: Camera, size: tuple[int, int], baseline_m: float = 0.0
) -> Any:
    """A rectified camera with images of (width, height); P[3] = -fx baseline, 0 on the left."""
    K = np.array([c.fx, 0.0, c.cx, 0.0, c.fy, c.cy, 0.0, 0.0, 1.0])
    P = np.insert(K, (3, 6, 9), 0.0)
    P[3] = -c.fx * baseline_m
    roi = dict.fromkeys(("x_offset", "y_offset", "height", "width"), 0)
    return make(
        CAMERA_INFO,
        header=header(stamp_ns, frame_id),
        width=size[0],
        height=size[1],
        distortion_model="plumb_bob",
        d=np.zeros(5),
        k=K,
        r=np.eye(3).reshape(-1),
        p=P,
        binning_x=0,
        binning_y=0,
        roi=make("sensor_msgs/msg/RegionOfInterest", **roi, do_rectify=False),
    )


def odometry(
    stamp_ns: int,
    frame_id: str,
    child: str,
    T: Array,
    velocity: Array,
    Sigma: Array | None = None,
) -> Any:
    """A pose of `child` in `frame_id` with its velocity (m/s, rad/s) in `child`.

    `Sigma` (6, 6) is that of the velocity. Covariances of zeros: not known.
    """
    linear, angular = vector(velocity[:3]), vector(velocity[3:])
    pose = make("geometry_msgs/msg/Pose", position=point(T[:3, 3]), orientation=quaternion(T))
    twist = make("geometry_msgs/msg/Twist", linear=linear, angular=angular)
    unknown = np.zeros(36)
    of_twist = unknown if Sigma is None else Sigma.ravel()
    return make(
        ODOMETRY,
        header=header(stamp_ns, frame_id),
        child_frame_id=child,
        pose=make("geometry_msgs/msg/PoseWithCovariance", pose=pose, covariance=unknown),
        twist=make("geometry_msgs/msg/TwistWithCovariance", twist=twist, covariance=of_twist),
    )


def transform(stamp_ns: int, frame_id: str, child: str, T: Array) -> Any:
    """TransformStamped: the pose of `child` in `frame_id`."""
    value = make(
        "geometry_msgs/msg/Transform", translation=vector(T[:3, 3]), rotation=quaternion(T)
    )
    return make(
        "geometry_msgs/msg/TransformStamped",
        header=header(stamp_ns, frame_id),
        child_frame_id=child,
        transform=value,
    )


def vector(xyz: Array) -> Any:
    """geometry_msgs/Vector3."""
    return make("geometry_msgs/msg/Vector3", **_named("xyz", xyz))


def point(xyz: Array) -> Any:
    """geometry_msgs/Point."""
    return make("geometry_msgs/msg/Point", **_named("xyz", xyz))


def quaternion(T: Array) -> Any:
    """geometry_msgs/Quaternion of the rotation of a pose."""
    return make("geometry_msgs/msg/Quaternion", **_named("wxyz", _wxyz(T)))


def pose_of(pose: Any) -> Array:
    """geometry_msgs/Pose as (4, 4)."""
    p, q = pose.position, pose.orientation
    values = np.array([p.x, p.y, p.z, q.w, q.x, q.y, q.z])
    length = float(np.linalg.norm(values[3:])) if np.isfinite(values).all() else 0.0
    if not abs(length - 1.0) < 0.1 or not np.abs(values).max() < FARTHEST_M:
        raise BadInput("pose", f"a pose is none: position and quaternion wxyz {values.tolist()}")
    rotation = lie.quaternion_to_matrix([q.w, q.x, q.y, q.z])
    return lie.se3_from(rotation, [p.x, p.y, p.z])


def _wxyz(T: Array) -> Array:
    return lie.quaternion_from_matrix(T[:3, :3])


def _named(names: str, values: Array) -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, values, strict=True)}


# --- a source of frames as messages --------------------------------------------------------------
# In the order in which a camera driver sends them. The images are of `camera_left_optical` and
# `camera_right_optical`; a static transform puts the left one at `base_link`. The truth is the
# left camera's pose in `odom`, which is `base_link` at the first pose: RViz shows it upright.

LEFT_FRAME, RIGHT_FRAME = "camera_left_optical", "camera_right_optical"
BASE_FRAME, WORLD_FRAME = "base_link", "odom"

STATIC_TRANSFORMS = "/tf_static"
GROUND_TRUTH = "/ground_truth/odometry"


def recorded(source: Source, compressed: bool = False, epoch_ns: int = 0) -> Iterator[Message]:
    """Every message of a source; `epoch_ns` is added to its stamps."""
    yield static_transforms(source, int(source.stamps_ns[0]) + epoch_ns)
    velocities, known = None, np.zeros(len(source), dtype=bool)
    if source.T_w_c is not None:
        velocities, known = own_velocities(source), _known(source.T_w_c)
    for index, frame in enumerate(source):
        stamp = frame.stamp_ns + epoch_ns
        if source.T_w_c is not None and velocities is not None and known[index]:
            T = T_BASE_OPTICAL @ source.T_w_c[index]
            truth = odometry(stamp, WORLD_FRAME, LEFT_FRAME, T, velocities[index])
            yield pack(GROUND_TRUTH, ODOMETRY, stamp, truth)
        yield from _camera_infos(source, frame, stamp)
        yield from _images(frame, stamp, compressed)


def sides(source: Source) -> tuple[tuple[str, str, float], ...]:
    """Of each camera of a source: its name in topics, its frame, how far right it sits in m."""
    left = ("left", LEFT_FRAME, 0.0)
    if not isinstance(source.camera, StereoCamera):
        return (left,)
    return (left, ("right", RIGHT_FRAME, source.camera.baseline_m))


def topic_types(source: Source, compressed: bool = False) -> dict[str, str]:
    """The topics that `recorded` gives, with their types."""
    kind, suffix = (COMPRESSED_IMAGE, "/compressed") if compressed else (IMAGE, "")
    types = {STATIC_TRANSFORMS: TRANSFORMS}
    if source.T_w_c is not None:
        types[GROUND_TRUTH] = ODOMETRY
    for side, _, _ in sides(source):
        types[f"/{side}/camera_info"] = CAMERA_INFO
        types[f"/{side}/image_rect{suffix}"] = kind
    return types


def message_count(source: Source) -> int:
    """How many messages `recorded` gives."""
    truths = 0 if source.T_w_c is None else int(_known(source.T_w_c).sum())
    return 1 + len(source) * 2 * len(sides(source)) + truths


def _known(T_w_c: Array) -> NDArray[np.bool_]:
    """Of which frames the truth is known."""
    return np.asarray(np.isfinite(T_w_c).all(axis=(1, 2)))


def own_velocities(source: Source) -> Array:
    """(N, 6) true velocity of the camera in its own frame: that of the step before, m/s, rad/s.

    0 where it is not known.
    """
    assert source.T_w_c is not None
    if len(source) < 2:
        return np.zeros((len(source), 6))
    known = _known(source.T_w_c)
    both = known[:-1] & known[1:]
    T_1_2 = lie.se3_inverse(source.T_w_c[:-1][both]) @ source.T_w_c[1:][both]
    steps = np.zeros((len(both), 6))
    steps[both] = lie.se3_log(T_1_2) / (np.diff(source.stamps_ns)[both] * 1e-9)[:, None]
    return np.concatenate([steps[:1], steps])


def static_transforms(source: Source, stamp_ns: int) -> Message:
    """Where the cameras are: the left one at the base, the right one a baseline beside it."""
    transforms = [transform(stamp_ns, BASE_FRAME, LEFT_FRAME, T_BASE_OPTICAL)]
    for _, frame_id, baseline_m in sides(source)[1:]:
        T_left_right = np.eye(4)
        T_left_right[0, 3] = baseline_m
        transforms.append(transform(stamp_ns, LEFT_FRAME, frame_id, T_left_right))
    content = make(TRANSFORMS, transforms=transforms)
    return pack(STATIC_TRANSFORMS, TRANSFORMS, stamp_ns, content)


def _camera_infos(source: Source, frame: Frame, stamp_ns: int) -> Iterator[Message]:
    height, width = frame.left.shape
    camera = source.camera.left if isinstance(source.camera, StereoCamera) else source.camera
    for side, frame_id, baseline_m in sides(source):
        info = camera_info(stamp_ns, frame_id, camera, (width, height), baseline_m)
        yield pack(f"/{side}/camera_info", CAMERA_INFO, stamp_ns, info)


def _images(frame: Frame, stamp_ns: int, compressed: bool) -> Iterator[Message]:
    yield _image("/left/image_rect", stamp_ns, LEFT_FRAME, frame.left, compressed)
    if frame.right is not None:
        yield _image("/right/image_rect", stamp_ns, RIGHT_FRAME, frame.right, compressed)


def _image(topic: str, stamp_ns: int, frame_id: str, pixels: Image, compressed: bool) -> Message:
    if compressed:
        content = compressed_image(stamp_ns, frame_id, pixels)
        return pack(f"{topic}/compressed", COMPRESSED_IMAGE, stamp_ns, content)
    return pack(topic, IMAGE, stamp_ns, image(stamp_ns, frame_id, pixels))


# --- sensors beside the camera -------------------------------------------------------------------


def wheel_messages(
    topic: str, motions: Iterable[RelativePose], T_w_c: Array | None = None
) -> Iterator[Message]:
    """Motions of the camera as a driver of wheels sends them: odometry of `base_link`.

    The base is where the camera is, x ahead. Poses have no covariance, twists that of the motion.
    `T_w_c` is where the first motion begins.
    """
    T = np.eye(4) if T_w_c is None else T_BASE_OPTICAL @ T_w_c @ lie.se3_inverse(T_BASE_OPTICAL)
    for motion in motions:
        T_2_1, Sigma = change_frame(T_BASE_OPTICAL, motion.T_2_1, motion.Sigma_2_1)
        T = T @ lie.se3_inverse(T_2_1)
        velocity = -lie.se3_log(T_2_1) / motion.seconds
        stamp = motion.stamp_2_ns
        content = odometry(stamp, WORLD_FRAME, BASE_FRAME, T, velocity, Sigma / motion.seconds**2)
        yield pack(topic, ODOMETRY, stamp, content)


def imu_messages(topic: str, samples: Iterable[ImuSample]) -> Iterator[Message]:
    """Samples of an IMU on the left camera, in its axes; orientation is not measured."""
    zeros, none = np.zeros(9), np.zeros(9)
    none[0] = -1.0
    for sample in samples:
        felt = sample.acceleration
        content = make(
            IMU,
            header=header(sample.stamp_ns, LEFT_FRAME),
            orientation=make("geometry_msgs/msg/Quaternion", x=0.0, y=0.0, z=0.0, w=1.0),
            orientation_covariance=none,
            angular_velocity=vector(sample.rate),
            angular_velocity_covariance=zeros,
            linear_acceleration=vector(np.zeros(3) if felt is None else felt),
            linear_acceleration_covariance=none if felt is None else zeros,
        )
        yield pack(topic, IMU, sample.stamp_ns, content)


# --- results of the nodes, read back -------------------------------------------------------------
# A message holds R_1_2 with a covariance about the fixed axes of camera 1; ours is of C_2_1.


def stamp_of(time: Any) -> int:
    """builtin_interfaces/Time in nanoseconds."""
    return int(time.sec) * 10**9 + int(time.nanosec)


def covariance_of(values: Any) -> Array:
    """The (6, 6) matrix of a message's 36 numbers."""
    return np.array(values, dtype=np.float64).reshape(6, 6)


def rotation_of(message: Any, interval: Any, epistemic: Any | None = None) -> RelativeRotation:
    """A rotation of hydranet_node, from its message, its interval and its epistemic part."""
    R_1_2 = pose_of(message.pose.pose)[:3, :3]
    Sigma, part = (
        None if each is None else R_1_2.T @ covariance_of(each.pose.covariance)[3:, 3:] @ R_1_2
        for each in (message, epistemic)
    )
    stamps = stamp_of(interval.time_ref), stamp_of(message.header.stamp)
    return RelativeRotation(R_1_2.T, np.asarray(Sigma), *stamps, part)


def turn_of(odometry: Any, stamp_1_ns: int, T_b_c: Array) -> RelativeRotation | None:
    """The camera's rotation since a stamp, from the twist of its base; None where it is lost."""
    twist, stamp_2_ns = odometry.twist, stamp_of(odometry.header.stamp)
    Sigma, dt = covariance_of(twist.covariance), (stamp_2_ns - stamp_1_ns) * 1e-9
    if float(np.diagonal(Sigma).max()) >= LOST_VARIANCE:
        return None
    C_c_b = T_b_c[:3, :3].T
    rate = C_c_b @ np.array([getattr(twist.twist.angular, axis) for axis in "xyz"])
    Sigma_2_1 = C_c_b @ Sigma[3:, 3:] @ C_c_b.T * dt**2
    return RelativeRotation(lie.so3_exp(-rate * dt), Sigma_2_1, stamp_1_ns, stamp_2_ns)
