"""Rigs: how the images of one instant become a frame, by their camera_info.

mono      an image that is rectified (P), or raw and undistorted here (K and D)
stereo    a pair that is rectified (P), or raw and rectified here (K, D, R and P)
rgbd      an image as of mono, with depth of its pixels, or of a camera of its own

Of a pair that stands one above the other, both images are turned by 90 degrees, so that the lower
camera is the right one: x of the turned camera is y of the upper one, y is -x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hydranet_ros.datasets.depth_images import DEPTH_BASELINE_M, Depth, DepthCamera
from hydranet_ros.datasets.sensor_messages import (
    CameraInfo,
    Grey,
    RawCamera,
    image_shape,
    is_rectified_by,
    is_vertical,
    raw_camera,
    rectified_camera,
    rectifying_camera,
    stereo_camera,
)
from hydranet_ros.errors import BadInput
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.lie import Array

# Takes a vector of the upper camera of a vertical pair to the turned one: x is y, y is -x.
TURNED: Array = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


@dataclass(frozen=True, eq=False)
class Rig:
    """Takes images to a frame: `camera` is that of the frame.

    `lenses` undistort; None leaves an image as it is. `turned`: the pair is a vertical one. Depth
    is of the image's own pixels unless it has a `depth_camera`.
    """

    camera: Camera | StereoCamera
    lenses: tuple[RawCamera | None, ...]
    turned: bool = False
    depth_camera: DepthCamera | None = None

    @property
    def T_image_camera(self) -> Array:
        """The frame's camera in the left (or upper) image's: the identity, or a turn."""
        return lie.se3_from(TURNED.T if self.turned else np.eye(3), np.zeros(3))

    def frame(self, stamp_ns: int, images: Sequence[Grey], depth: Depth | None = None) -> Frame:
        """The frame of images, left before right, or of one and its depth."""
        if len({image.shape for image in images}) > 1:
            sizes = " and ".join(f"{image.shape[1]}x{image.shape[0]}" for image in images)
            raise BadInput("image size", f"left and right images differ in size: {sizes} pixels")
        left, *right = (
            self._seen(image, lens) for image, lens in zip(images, self.lenses, strict=True)
        )
        if depth is not None:
            depth = self._depth(depth, images[0].shape)
        return Frame(stamp_ns, left, right[0] if right else None, depth)

    def _seen(self, image: Grey, lens: RawCamera | None) -> Grey:
        seen = image if lens is None else lens.undistort(image)
        return np.ascontiguousarray(np.rot90(seen)) if self.turned else seen

    def _depth(self, depth: Depth, shape: tuple[int, ...]) -> Depth:
        if self.depth_camera is not None:
            return self.depth_camera.registered(depth, shape)
        if depth.shape != shape:
            raise BadInput(
                "image size",
                f"depth has {depth.shape[1]}x{depth.shape[0]} pixels, its image "
                f"{shape[1]}x{shape[0]}: it is not of the same pixels",
            )
        lens = self.lenses[0]
        return depth if lens is None else lens.undistort_depth(depth)


def mono_rig(info: CameraInfo, rectified: bool) -> Rig:
    """One camera."""
    if rectified:
        return Rig(rectified_camera(info), (None,))
    lens = raw_camera(info)
    return Rig(lens.camera, (lens,))


def rgbd_rig(
    info: CameraInfo,
    rectified: bool,
    depth: CameraInfo | None = None,
    T_image_depth: Array | None = None,
) -> Rig:
    """One camera with depth of its pixels; or with depth of another camera, and where that is."""
    mono = mono_rig(info, rectified)
    assert isinstance(mono.camera, Camera)
    other = None
    if depth is not None and T_image_depth is not None:
        other = DepthCamera(raw_camera(depth), T_image_depth, mono.camera)
    return Rig(StereoCamera(mono.camera, DEPTH_BASELINE_M), mono.lenses, depth_camera=other)


def stereo_rig(left: CameraInfo, right: CameraInfo, raw: bool) -> Rig:
    """A pair whose P are of one rectified pair, also where the images are still raw."""
    lenses: tuple[RawCamera | None, ...] = (None, None)
    if raw:
        lenses = rectifying_camera(left), rectifying_camera(right)
    camera, turned = stereo_camera(left, right), is_vertical(left, right)
    if not turned:
        return Rig(camera, lenses)
    width = image_shape(left)[1]
    if not width:
        raise BadInput("camera_info", "camera_info of a vertical pair must have its image's size")
    c = camera.left
    return Rig(
        StereoCamera(Camera(c.fy, c.fx, c.cy, width - 1.0 - c.cx), camera.baseline_m), lenses, True
    )


def is_raw_pair(infos: Sequence[CameraInfo], topics: Sequence[str]) -> bool:
    """Whether images are raw: their topics are not called rectified, and it would change them."""
    named = any("rect" in topic for topic in topics)
    return not named and any(is_rectified_by(info) for info in infos)
