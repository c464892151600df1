"""The messages of a source of frames, in the order in which a camera driver would send them.

Frames of reference: the images are of `camera_left_optical` and `camera_right_optical`; a static
transform puts the left one at `base_link` with its optical axes (x right, y down, z forward)
turned to a body's (x forward, y left, z up). The truth is the left camera's pose in `odom`, which
is `base_link` at the first pose's origin, so that RViz shows it upright.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hydranet_ros.bags import messages as ros
from hydranet_ros.bags.messages import Message, pack
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.sources import Frame, Image, Source

LEFT_FRAME, RIGHT_FRAME = "camera_left_optical", "camera_right_optical"
BASE_FRAME, WORLD_FRAME = "base_link", "odom"
SIDES = (("left", LEFT_FRAME), ("right", RIGHT_FRAME))

STATIC_TRANSFORMS = "/tf_static"
GROUND_TRUTH = "/ground_truth/odometry"

# The pose of an optical frame in a body's: forward is z here and x there.
T_BASE_OPTICAL: Array = np.array(
    [[0.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
)


def recorded(source: Source, compressed: bool = False, epoch_ns: int = 0) -> Iterator[Message]:
    """Every message of a source; `epoch_ns` is added to its stamps."""
    yield static_transforms(source, int(source.stamps_ns[0]) + epoch_ns)
    velocities = None if source.T_w_c is None else own_velocities(source)
    for index, frame in enumerate(source):
        stamp = frame.stamp_ns + epoch_ns
        if source.T_w_c is not None and velocities is not None:
            T = T_BASE_OPTICAL @ source.T_w_c[index]
            truth = ros.odometry(stamp, WORLD_FRAME, LEFT_FRAME, T, velocities[index])
            yield pack(GROUND_TRUTH, ros.ODOMETRY, stamp, truth)
        yield from _camera_infos(source, frame, stamp)
        yield from _images(frame, stamp, compressed)


def topic_types(source: Source, compressed: bool = False) -> dict[str, str]:
    """The topics that `recorded` gives, with their types."""
    image, suffix = (ros.COMPRESSED_IMAGE, "/compressed") if compressed else (ros.IMAGE, "")
    types = {STATIC_TRANSFORMS: ros.TRANSFORMS}
    if source.T_w_c is not None:
        types[GROUND_TRUTH] = ros.ODOMETRY
    for side, _ in SIDES:
        types[f"/{side}/camera_info"] = ros.CAMERA_INFO
        types[f"/{side}/image_rect{suffix}"] = image
    return types


def message_count(source: Source) -> int:
    """How many messages `recorded` gives."""
    return 1 + len(source) * (4 if source.T_w_c is None else 5)


def own_velocities(source: Source) -> Array:
    """(N, 6) true velocity of the camera in its own frame: that of the step before, m/s, rad/s."""
    assert source.T_w_c is not None
    if len(source) < 2:
        return np.zeros((len(source), 6))
    T_1_2 = lie.se3_inverse(source.T_w_c[:-1]) @ source.T_w_c[1:]
    steps = lie.se3_log(T_1_2) / (np.diff(source.stamps_ns) * 1e-9)[:, None]
    return np.concatenate([steps[:1], steps])


def static_transforms(source: Source, stamp_ns: int) -> Message:
    """Where the cameras are: the left one at the base, the right one a baseline beside it."""
    T_left_right = np.eye(4)
    T_left_right[0, 3] = source.camera.baseline_m
    transforms = [
        ros.transform(stamp_ns, BASE_FRAME, LEFT_FRAME, T_BASE_OPTICAL),
        ros.transform(stamp_ns, LEFT_FRAME, RIGHT_FRAME, T_left_right),
    ]
    content = ros.make(ros.TRANSFORMS, transforms=transforms)
    return pack(STATIC_TRANSFORMS, ros.TRANSFORMS, stamp_ns, content)


def _camera_infos(source: Source, frame: Frame, stamp_ns: int) -> Iterator[Message]:
    height, width = frame.left.shape
    for side, frame_id in SIDES:
        right = side == "right"
        info = ros.camera_info(stamp_ns, frame_id, source.camera, (width, height), right)
        yield pack(f"/{side}/camera_info", ros.CAMERA_INFO, stamp_ns, info)


def _images(frame: Frame, stamp_ns: int, compressed: bool) -> Iterator[Message]:
    for (side, frame_id), pixels in zip(SIDES, (frame.left, frame.right), strict=True):
        yield _image(f"/{side}/image_rect", stamp_ns, frame_id, pixels, compressed)


def _image(topic: str, stamp_ns: int, frame_id: str, pixels: Image, compressed: bool) -> Message:
    if compressed:
        content = ros.compressed_image(stamp_ns, frame_id, pixels)
        return pack(f"{topic}/compressed", ros.COMPRESSED_IMAGE, stamp_ns, content)
    return pack(topic, ros.IMAGE, stamp_ns, ros.image(stamp_ns, frame_id, pixels))
