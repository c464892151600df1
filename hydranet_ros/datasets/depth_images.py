"""Depth from messages and files, in metres, and as the pixels of another camera's image see it.

Depth is (h, w) float32; 0 is a hole. ROS has 16UC1 in millimetres and 32FC1 in metres (REP 118),
compressed as PNG, or as `compressedDepth`: twelve bytes of header before a PNG, in which depth of
32FC1 is stored as a / (z - b) with a and b from the header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.datasets.image_folder import ImageFolder
from hydranet_ros.datasets.kitti import read_grey
from hydranet_ros.datasets.sensor_messages import (
    CompressedImage,
    RawCamera,
    RawImage,
    check_layout,
)
from hydranet_ros.errors import BadInput, FileError
from hydranet_ros.files import LARGEST_IMAGE_FILE, image_size, read_bytes
from hydranet_ros.geometry.camera import Camera, Frame
from hydranet_ros.geometry.lie import Array
from hydranet_ros.stereo_vo.depth import inverse_depth

Depth = NDArray[np.float32]

# Between the projector and the camera of a Kinect: disparities then are those that it measures.
DEPTH_BASELINE_M = 0.075
# Metres of a step, and how the numbers are stored.
ENCODINGS = {"16UC1": (1e-3, "u2"), "mono16": (1e-3, "u2"), "32FC1": (1.0, "f4")}
COMPRESSED_DEPTH = "compressedDepth"
_HEADER = struct.Struct("<iff")
# Sensors reach some ten metres; what is further is a fault, or the sky of a simulation.
_FARTHEST_M = 1000.0


# --- pixels --------------------------------------------------------------------------------------


def depth_of_raw(message: RawImage) -> Depth:
    """Depth of a sensor_msgs/Image; rows may be padded, and numbers of either byte order."""
    if message.encoding not in ENCODINGS:
        raise BadInput(
            "encoding",
            f"depth has encoding {message.encoding!r}: use one of {', '.join(ENCODINGS)}",
        )
    check_layout(message)
    scale, kind = ENCODINGS[message.encoding]
    stored = np.dtype((">" if message.is_bigendian else "<") + kind)
    rows = np.frombuffer(message.data, dtype=np.uint8).reshape(message.height, message.step)
    used = np.ascontiguousarray(rows[:, : message.width * stored.itemsize])
    return _metres(used.view(stored).astype(stored.newbyteorder("=")), scale)


def depth_of_compressed(message: CompressedImage) -> Depth:
    """Depth of a sensor_msgs/CompressedImage: PNG of 16 bits, alone or as compressedDepth."""
    data = np.frombuffer(message.data, dtype=np.uint8)
    head = _HEADER.size if COMPRESSED_DEPTH in message.format else 0
    try:
        image_size(data[head:].data)
    except ValueError as error:
        raise BadInput(
            "compressed data",
            f"compressed depth ({data.size} bytes, format {message.format!r}) is no PNG: it "
            f"{error}",
        ) from None
    depth = cv2.imdecode(data[head:], cv2.IMREAD_UNCHANGED)
    if depth is None or depth.dtype != np.uint16 or depth.ndim != 2:
        raise BadInput("compressed data", "compressed depth is not a grey PNG of 16 bits")
    if not message.format.startswith("32FC1"):
        return _metres(depth, 1e-3)
    if not head:
        raise BadInput("compressed data", f"depth of format {message.format!r} has no scale")
    _, a, b = _HEADER.unpack(data[:head].tobytes())
    with np.errstate(divide="ignore"):
        return _metres(np.where(depth > 0, a / (depth - b), 0.0), 1.0)


def _metres(stored: NDArray[np.generic], scale: float) -> Depth:
    """Metres; what is not finite, negative or beyond every sensor is a hole."""
    depth = np.asarray(stored, dtype=np.float32) * np.float32(scale)
    with np.errstate(invalid="ignore"):
        return np.where((depth > 0.0) & (depth < _FARTHEST_M), depth, np.float32(0.0))


def read_depth(path: Path, size: tuple[int, int], per_m: float, hole: int = 0) -> Depth:
    """Read a depth image of (height, width) whose steps are 1 / per_m; 0 and `hole` are holes."""
    data = read_bytes(path, LARGEST_IMAGE_FILE)
    try:
        width, height = image_size(data)
    except ValueError as error:
        raise FileError(path, str(error)) from None
    if (height, width) != size:
        raise FileError(path, f"has {width}x{height} pixels, its image {size[1]}x{size[0]}")
    depth = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_UNCHANGED)
    if depth is None or depth.dtype != np.uint16 or depth.ndim != 2:
        raise FileError(path, "is not a depth image: 16-bit grey PNG is expected")
    metres = np.asarray(depth / per_m, dtype=np.float32)
    return metres if not hole else np.where(depth == hole, np.float32(0.0), metres)


# --- depth of a camera of its own ----------------------------------------------------------------


class DepthCamera:
    """Depth of another camera's pixels, seen from the image's: p_image = T_image_depth p_depth.

    `lens` is how depth is taken, `camera` that of the (undistorted) image.
    """

    def __init__(self, lens: RawCamera, T_image_depth: Array, camera: Camera) -> None:
        self._lens, self._camera = lens, camera
        self._R, self._t = T_image_depth[:3, :3], T_image_depth[:3, 3]

    def registered(self, depth: Depth, shape: tuple[int, ...]) -> Depth:
        """Depth as an image of (height, width) sees it; where two surfaces meet, the nearer.

        Every pixel of depth is put where it is seen. Then each pixel of the image takes the depth
        on its own ray, interpolated, where the four around it are of one surface.
        """
        depth = self._lens.undistort_depth(depth)
        row, column = np.nonzero(depth > 0.0)
        pixels = np.stack([column, row], axis=1)
        x, y, z = _moved(
            self._lens.camera, pixels, depth[row, column].astype(np.float64), self._R, self._t
        )
        u, v = _pixels(self._camera, x, y, z).T
        found = self._splat(u, v, z, shape)
        row, column = np.nonzero(found)
        at = np.stack([column, row], axis=1)
        back = self._R.T, -self._R.T @ self._t
        x, y, z = _moved(self._camera, at, found[row, column].astype(np.float64), *back)
        there = _pixels(self._lens.camera, x, y, z)
        inverse, known = inverse_depth(depth, there)
        row, column = row[known], column[known]
        seen = there[known], 1.0 / inverse[known]
        found[row, column] = _moved(self._lens.camera, *seen, self._R, self._t)[2]
        return found

    def _splat(self, u: Array, v: Array, z: Array, shape: tuple[int, ...]) -> Depth:
        """The nearest of the depths on each pixel of the image; each may cover several."""
        ratio = self._camera.fx / self._lens.camera.fx
        side = max(int(np.ceil(ratio - 1e-3)), 1)
        height, width = shape
        column, row = (np.floor(x + 0.5 - 0.5 * (side - 1)).astype(np.int64) for x in (u, v))
        out = np.full((height, width), np.inf, dtype=np.float32)
        for i in range(side):
            for j in range(side):
                r, c = row + i, column + j
                inside = (r >= 0) & (r < height) & (c >= 0) & (c < width) & (z > 0.0)
                np.minimum.at(out, (r[inside], c[inside]), z[inside].astype(np.float32))
        return np.where(np.isfinite(out), out, np.float32(0.0))


def _moved(
    camera: Camera, pixels: Array, z: Array, R: Array, t: Array
) -> tuple[Array, Array, Array]:
    """The points R p + t of (n, 2) pixels with (n,) depths: x, y and z, each (n,)."""
    x = (pixels[:, 0] - camera.cx) * z / camera.fx
    y = (pixels[:, 1] - camera.cy) * z / camera.fy
    first, second, third = (R[i, 0] * x + R[i, 1] * y + R[i, 2] * z + t[i] for i in range(3))
    return first, second, third


def _pixels(camera: Camera, x: Array, y: Array, z: Array) -> Array:
    """(n, 2) pixels of points; those behind the camera are somewhere."""
    ahead = np.maximum(z, 1e-3)
    return np.stack([camera.fx * x / ahead + camera.cx, camera.fy * y / ahead + camera.cy], axis=1)


# --- folders -------------------------------------------------------------------------------------


class RgbdFolder(ImageFolder):
    """Frames of listed files: colour and depth; the baseline of their camera is virtual.

    Depth has steps of 1 / `per_m` and holes of 0 and `hole`; without a `depth_camera` it is of the
    pixels of the colour image.
    """

    per_m, hole = 1000.0, 0
    depth_camera: DepthCamera | None = None

    def __iter__(self) -> Iterator[Frame]:
        ((file, lens),) = self._lenses
        size: tuple[int, int] | None = None
        for stamp, (colour, depth) in zip(self.stamps_ns, self._images, strict=True):
            image = read_grey(colour, size)
            if size is None:
                size = image.shape[0], image.shape[1]
                file.check(lens.camera, size)
            metres = read_depth(depth, size, self.per_m, self.hole)
            if self.depth_camera is None:
                metres = lens.undistort_depth(metres)
            else:
                metres = self.depth_camera.registered(metres, size)
            yield Frame(int(stamp), lens.undistort(image), None, metres)
