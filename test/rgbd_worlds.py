"""A room seen by an RGB-D camera: the messages that its driver sends, and the truth.

The image is that of the right camera of a rendered pair. Registered depth is rendered with it;
depth of a camera of its own is the left camera's, with half the pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from hydranet_ros.datasets import bag_messages as ros
from hydranet_ros.datasets.bag_messages import CAMERA_INFO, IMAGE, TRANSFORMS, Message, pack
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.simulation import RIGHT, Building, BuildingConfig

FRAMES, WIDTH, HEIGHT, BASELINE_M = 9, 320, 240, 0.05
LENS = Camera(260.0, 260.0, 160.0, 120.0)
HALF = Camera(130.0, 130.0, 80.0, 60.0)  # every second pixel of every second row
COLOUR, DEPTH = "camera_color_optical_frame", "camera_depth_optical_frame"
T_COLOUR_DEPTH = lie.se3_from(np.eye(3), [-BASELINE_M, 0.0, 0.0])


@dataclass(frozen=True, eq=False)
class Room:
    """Images of both cameras, depth of both in metres, poses of the right camera."""

    stamps_ns: list[int]
    left: list[np.ndarray]
    images: list[np.ndarray]
    depth: list[np.ndarray]
    T_w_c: np.ndarray


@cache
def room() -> Room:
    world = Building(
        BuildingConfig(
            frames=FRAMES, seed=5, width=WIDTH, height=HEIGHT, people=0,
            camera=StereoCamera(LENS, BASELINE_M),
        )
    )  # fmt: skip
    count = range(FRAMES)
    return Room(
        [10**12 + k * 10**8 for k in count],
        [world.render(k).left for k in count],
        [np.asarray(world.photograph(k, RIGHT)) for k in count],
        [np.nan_to_num(world.depth(k)) for k in count],
        np.asarray([each.T_w_c for each in world]) @ lie.se3_inverse(T_COLOUR_DEPTH),
    )


def depth_image(stamp_ns: int, frame_id: str, metres: np.ndarray, encoding: str) -> object:
    """sensor_msgs/Image of depth, with holes as the encoding has them."""
    if encoding == "16UC1":
        data = np.round(metres * 1e3).astype("<u2")
    else:
        data = np.where(metres > 0.0, metres, np.nan).astype("<f4")
    height, width = metres.shape
    return ros.make(
        IMAGE,
        header=ros.header(stamp_ns, frame_id),
        height=height,
        width=width,
        encoding=encoding,
        is_bigendian=0,
        step=width * data.itemsize,
        data=np.frombuffer(data.tobytes(), dtype=np.uint8),
    )


def messages(registered: bool, encoding: str, later_ns: int = 0) -> Iterator[Message]:
    """What a driver sends; depth is stamped later by `later_ns`.

    Registered depth is of the left camera, and so is the image then.
    """
    seen = room()
    frame = COLOUR if registered else DEPTH
    lens, size = (LENS, (WIDTH, HEIGHT)) if registered else (HALF, (WIDTH // 2, HEIGHT // 2))
    first = seen.stamps_ns[0]
    where = ros.transform(first, COLOUR, DEPTH, T_COLOUR_DEPTH)
    yield pack("/tf_static", TRANSFORMS, first, ros.make(TRANSFORMS, transforms=[where]))
    for stamp, left, right, depth in zip(
        seen.stamps_ns, seen.left, seen.images, seen.depth, strict=True
    ):
        info = ros.camera_info(stamp, COLOUR, LENS, (WIDTH, HEIGHT))
        yield pack("/camera/color/camera_info", CAMERA_INFO, stamp, info)
        own = ros.camera_info(stamp, frame, lens, size)
        yield pack("/camera/depth/camera_info", CAMERA_INFO, stamp, own)
        image = ros.image(stamp, COLOUR, left if registered else right)
        yield pack("/camera/color/image_raw", IMAGE, stamp, image)
        metres = with_holes(depth if registered else depth[::2, ::2])
        at = stamp + later_ns
        yield pack("/camera/depth/image_raw", IMAGE, at, depth_image(at, frame, metres, encoding))


def with_holes(depth: np.ndarray) -> np.ndarray:
    """Without what is far, and without one pixel in fifty."""
    holes = np.random.default_rng(1).random(depth.shape) < 0.02
    return np.where(holes | (depth > 6.0), 0.0, depth)
