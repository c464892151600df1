"""sensor_msgs to pixels and cameras. Messages of rclpy and of rosbags have the same fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.datasets.jpeg import JpegCheck
from hydranet_ros.errors import BadInput
from hydranet_ros.files import image_size
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.estimates import ROTATION_TOLERANCE
from hydranet_ros.geometry.lie import Array


class RawImage(Protocol):
    """sensor_msgs/Image."""

    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: Any  # bytes, or an array of them


class CompressedImage(Protocol):
    """sensor_msgs/CompressedImage."""

    format: str
    data: Any  # bytes, or an array of them


class Header(Protocol):
    """std_msgs/Header."""

    frame_id: str


class RegionOfInterest(Protocol):
    """sensor_msgs/RegionOfInterest."""

    x_offset: int
    y_offset: int
    height: int
    width: int


class CameraInfo(Protocol):
    """sensor_msgs/CameraInfo."""

    header: Header
    height: int
    width: int
    distortion_model: str
    d: Sequence[float]
    k: Sequence[float]
    r: Sequence[float]
    p: Sequence[float]
    binning_x: int
    binning_y: int
    roi: RegionOfInterest


# --- pixels --------------------------------------------------------------------------------------
# To grey images (h, w) uint8, with the results of ROS 2's cv_bridge where it knows the encoding.

Grey = NDArray[np.uint8]


@dataclass(frozen=True)
class Encoding:
    """Channels of a type, and how they become grey: by OpenCV, or as the byte at `luma`.

    `chroma` planes of whole rows follow the luma of planar encodings, per row of the image.
    """

    channels: int = 1
    kind: str = "u1"
    code: int | None = None
    luma: int | None = None
    chroma: float = 0.0

    def rows(self, height: int) -> int:
        """How many rows of `step` bytes the data have."""
        return height + int(np.ceil(height * self.chroma))


# OpenCV names a Bayer pattern by its second row, ROS by its first.
_BAYER = {
    "rggb": cv2.COLOR_BayerBG2GRAY,
    "bggr": cv2.COLOR_BayerRG2GRAY,
    "gbrg": cv2.COLOR_BayerGR2GRAY,
    "grbg": cv2.COLOR_BayerGB2GRAY,
}
_COLOURS = {
    "bgr": (3, cv2.COLOR_BGR2GRAY),
    "rgb": (3, cv2.COLOR_RGB2GRAY),
    "bgra": (4, cv2.COLOR_BGRA2GRAY),
    "rgba": (4, cv2.COLOR_RGBA2GRAY),
}
ENCODINGS: dict[str, Encoding] = {
    "mono8": Encoding(),
    "mono16": Encoding(kind="u2"),
    **{
        f"{name}{bits}": Encoding(channels, kind, code)
        for bits, kind in ((8, "u1"), (16, "u2"))
        for name, (channels, code) in _COLOURS.items()
    },
    **{
        f"bayer_{name}{bits}": Encoding(1, kind, code)
        for bits, kind in ((8, "u1"), (16, "u2"))
        for name, code in _BAYER.items()
    },
    "8UC1": Encoding(),
    "8UC3": Encoding(3, "u1", cv2.COLOR_BGR2GRAY),
    "8UC4": Encoding(4, "u1", cv2.COLOR_BGRA2GRAY),
    "16UC1": Encoding(kind="u2"),
    "16UC3": Encoding(3, "u2", cv2.COLOR_BGR2GRAY),
    "16UC4": Encoding(4, "u2", cv2.COLOR_BGRA2GRAY),
    "32FC1": Encoding(kind="f4"),
    "yuv422": Encoding(2, luma=1),
    "uyvy": Encoding(2, luma=1),
    "yuv422_yuy2": Encoding(2, luma=0),
    "yuyv": Encoding(2, luma=0),
    "nv12": Encoding(chroma=0.5),
    "nv21": Encoding(chroma=0.5),
    "nv24": Encoding(chroma=2.0),
}
# Cameras put 10, 12 or 14 bits into 16. Floating point is of 0 to 1, or of such numbers.
_TOPS = (1, 255, 1023, 4095, 16383, 65535)


class PixelRange:
    """What is white in a stream of images with more than 8 bits, and whether its JPEGs are whole.

    The range is the one that they have used. It grows with the first bright image and never
    shrinks: exposure is not ours to change.
    """

    def __init__(self) -> None:
        self._top = 0
        self.jpegs = JpegCheck()

    def grey(self, pixels: NDArray[Any]) -> Grey:
        """(h, w) of 16 bits or floating point; what is not finite or negative is black."""
        if pixels.dtype.kind == "f":
            pixels = np.nan_to_num(pixels, nan=0.0, posinf=0.0, neginf=0.0).clip(0.0)
        brightest = pixels.max(initial=0)
        least = 1 if pixels.dtype.kind == "f" else 255
        fits = [top for top in _TOPS if top >= max(brightest, least)]
        if not fits:
            raise BadInput(
                "image range", f"pixels up to {brightest:g}, more than 65535: scale them"
            )
        self._top = max(self._top, fits[0])
        return np.asarray(cv2.convertScaleAbs(pixels, alpha=255.0 / self._top), dtype=np.uint8)


def grey_of_raw(message: RawImage, white: PixelRange | None = None) -> Grey:
    """Rows may be padded, and numbers of either byte order.

    `white` is kept from image to image of a stream; without it each image has a range of its own.
    """
    check_layout(message)
    encoding = ENCODINGS[message.encoding]
    kind = np.dtype((">" if message.is_bigendian else "<") + encoding.kind)
    rows = np.frombuffer(message.data, dtype=np.uint8).reshape(-1, message.step)
    rows = rows[: message.height, : message.width * encoding.channels * kind.itemsize]
    if encoding.luma is not None:
        return np.ascontiguousarray(rows[:, encoding.luma :: encoding.channels])
    pixels = np.ascontiguousarray(rows).view(kind).astype(kind.newbyteorder("="), copy=False)
    if encoding.code is not None:
        shape = (message.height, message.width, encoding.channels)
        pixels = cv2.cvtColor(pixels.reshape(shape), encoding.code)
    if kind.itemsize > 1:
        return (white or PixelRange()).grey(pixels)
    return np.asarray(pixels, dtype=np.uint8)


def check_layout(message: RawImage) -> None:
    """Refuse an unknown encoding, and rows or data too short for what they should hold."""
    encoding = ENCODINGS.get(message.encoding)
    if encoding is None:
        raise BadInput(
            "encoding",
            f"encoding {message.encoding!r} is not known: use one of {', '.join(ENCODINGS)}",
        )
    if message.height < 1 or message.width < 1:
        raise BadInput("empty image", f"image is empty: {message.width}x{message.height} pixels")
    least = message.width * encoding.channels * np.dtype(encoding.kind).itemsize
    if message.step < least:
        raise BadInput(
            "image step",
            f"step {message.step} is too short: {message.width} pixels of {message.encoding} "
            f"need {least} bytes",
        )
    rows = encoding.rows(message.height)
    if len(message.data) != message.step * rows:
        what = "height" if rows == message.height else f"the {rows} rows of {message.encoding} of"
        raise BadInput(
            "image data",
            f"data has {len(message.data)} bytes instead of step {message.step} times {what} "
            f"{message.height}",
        )


def grey_of_compressed(message: CompressedImage, white: PixelRange | None = None) -> Grey:
    """JPEG or PNG, whole and of a size to be decoded, with the rows as they were sent."""
    data = np.frombuffer(message.data, dtype=np.uint8)
    try:
        image_size(data.data)
    except ValueError as error:
        raise BadInput(
            "compressed data",
            f"compressed data ({data.size} bytes, format {message.format!r}) is not an image "
            f"that OpenCV can read: it {error}",
        ) from None
    flags = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(data, flags) if data.size else None
    if image is None:
        raise BadInput(
            "compressed data",
            f"compressed data ({data.size} bytes, format {message.format!r}) is not an image "
            "that OpenCV can read",
        )
    white = white or PixelRange()
    if white.jpegs.is_damaged(data.tobytes()):
        raise BadInput("compressed data", "a JPEG is damaged: parts of it are missing or moved")
    if image.dtype != np.uint8:
        return white.grey(image)
    return np.asarray(image, dtype=np.uint8)


# --- cameras -------------------------------------------------------------------------------------
# P belongs to rectified images, K and D to raw ones. Both are of the full sensor: what a region of
# interest cuts off and what binning merges is taken out here.

FISHEYE = "equidistant"
OPENCV_MODELS = ("", "plumb_bob", "rational_polynomial", "thin_prism_fisheye")
# Left and right of a rectified pair share their intrinsics to what drivers and text files round.
PAIR_TOLERANCE = 1e-3


def rectified_camera(info: CameraInfo) -> Camera:
    """The camera of a rectified image, from P."""
    return _camera(info, _projection(info))


def stereo_camera(left: CameraInfo, right: CameraInfo) -> StereoCamera:
    """A rectified pair; baseline = left.Tx / left.fx - right.Tx / right.fx.

    Likewise with Ty and fy of a pair that stands one above the other, the upper as the left one.
    """
    left_p, right_p = _projection(left), _projection(right)
    camera, other = _camera(left, left_p), _camera(right, right_p)
    if np.abs(left_p[:, :3] - right_p[:, :3]).max() > PAIR_TOLERANCE * camera.fx:
        raise BadInput(
            "camera_info",
            "left and right camera_info are not of one rectified pair, P differs in more than Tx: "
            f"{camera} and {other}",
        )
    along, down = _baselines(left_p, right_p)
    baseline = down if abs(down) > abs(along) else along
    if not np.isfinite(baseline) or baseline <= 0.0:
        raise BadInput(
            "baseline",
            f"left and right camera_info give a baseline of {baseline:.4g} m (from P[3]): are "
            "left and right swapped, or P of an unrectified pair?",
        )
    if min(abs(along), abs(down)) > PAIR_TOLERANCE * baseline:
        raise BadInput(
            "baseline",
            f"the right camera is {along:.4g} m beside and {down:.4g} m below: not rectified",
        )
    return StereoCamera(camera, baseline)


def is_vertical(left: CameraInfo, right: CameraInfo) -> bool:
    """Whether a pair stands one above the other."""
    along, down = _baselines(_projection(left), _projection(right))
    return abs(down) > abs(along)


def _baselines(left: Array, right: Array) -> tuple[float, float]:
    """How far the right camera is to the right and below, by the projections of both."""
    x, y = (float(left[i, 3] / left[i, i] - right[i, 3] / right[i, i]) for i in (0, 1))
    return x, y


Maps = tuple[NDArray[np.float32], NDArray[np.float32]]


class RawCamera:
    """A raw image's camera: `camera` is that of the undistorted image.

    The raw image is that of `lens`. Where a pair is rectified, `camera` is turned against it:
    p_camera = R p_lens.
    """

    def __init__(
        self, lens: Camera, info: CameraInfo, camera: Camera | None = None, R: Array | None = None
    ) -> None:
        self.camera = camera or lens
        self._lens, self._R = lens, np.eye(3) if R is None else R
        self._info = info if camera is not None or is_distorted(info) else None
        self._shape: tuple[int, ...] = ()

    def undistort(self, image: Grey) -> Grey:
        """Resample to what a pinhole camera would see."""
        if self._info is None:
            return image
        maps = self._maps_of(self._info, image.shape)
        warped = cv2.remap(image, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        return np.asarray(warped, dtype=np.uint8)

    def undistort_depth(self, depth: NDArray[np.float32]) -> NDArray[np.float32]:
        """Likewise for depth of the same pixels: the nearest one, as a mean of two is nowhere."""
        if self._info is None:
            return depth
        maps = self._maps_of(self._info, depth.shape)
        return np.asarray(cv2.remap(depth, *maps, cv2.INTER_NEAREST), dtype=np.float32)

    def _maps_of(self, info: CameraInfo, shape: tuple[int, ...]) -> Maps:
        if shape != self._shape:
            self._maps = _maps(info, self._lens, self.camera, self._R, shape)
            self._shape = shape
        return self._maps


def raw_camera(info: CameraInfo) -> RawCamera:
    """The camera of a raw image, from K and D."""
    camera = _camera(info, _sent(info, "K", np.array(info.k, dtype=np.float64).reshape(3, 3)))
    if not np.isfinite(np.array(info.d, dtype=np.float64)).all():
        raise _refused(info, "has a D that is not finite: calibrate again")
    if is_distorted(info):
        coefficients(info)
    return RawCamera(camera, info)


def rectifying_camera(info: CameraInfo) -> RawCamera:
    """The camera of a raw image of a pair, from K, D, R and P; it is rectified as it is read."""
    lens, R = raw_camera(info).camera, _rotation(info)
    if not np.isfinite(R).all() or np.abs(R @ R.T - np.eye(3)).max() > ROTATION_TOLERANCE:
        raise _refused(info, "has an R that is no rotation: calibrate the pair")
    return RawCamera(lens, info, rectified_camera(info), lie.project_to_so3(R))


def is_rectified_by(info: CameraInfo) -> bool:
    """Whether a raw image of this camera is another one than its rectified image."""
    same = np.array(info.p, dtype=np.float64).reshape(3, 4)[:, :3]
    moved = np.abs(same - np.array(info.k, dtype=np.float64).reshape(3, 3)).max() > 1e-3
    turned = np.abs(_rotation(info) - np.eye(3)).max() > 1e-6
    return is_distorted(info) or bool(moved or turned)


def _rotation(info: CameraInfo) -> Array:
    """R; the identity where it is all zeros, which is not set."""
    R = np.array(info.r, dtype=np.float64).reshape(3, 3)
    return R if R.any() else np.eye(3)


def is_distorted(info: CameraInfo) -> bool:
    """Whether the raw image of this camera is not a pinhole's. A fisheye's never is."""
    fisheye = info.distortion_model == FISHEYE
    return fisheye or bool(np.any(np.array(info.d, dtype=np.float64)))


def image_shape(info: CameraInfo) -> tuple[int, int]:
    """(height, width) of the images that belong to it; (0, 0) where it does not say."""
    roi = info.roi
    height, width = (roi.height or info.height), (roi.width or info.width)
    if not height or not width:
        return 0, 0
    return height // max(info.binning_y, 1), width // max(info.binning_x, 1)


def check_shape(info: CameraInfo, shape: tuple[int, ...]) -> None:
    """Refuse an image of another size than its calibration's."""
    expected = image_shape(info)
    if expected != (0, 0) and expected != shape:
        raise BadInput(
            "image size",
            f"image has {shape[1]}x{shape[0]} pixels, its camera_info says "
            f"{expected[1]}x{expected[0]}",
        )


def check_principal_point(info: CameraInfo, camera: Camera, shape: tuple[int, ...]) -> None:
    """Refuse a camera that looks past its own image, where camera_info has not told its size."""
    if image_shape(info) == (0, 0):
        _check_principal_point(info, camera.cx, camera.cy, shape[1], shape[0])


def _check_principal_point(
    info: CameraInfo, cx: float, cy: float, width: int, height: int
) -> None:
    if not (0.0 <= cx <= width and 0.0 <= cy <= height):
        raise _refused(
            info,
            f"has its principal point at ({cx:.5g}, {cy:.5g}), outside of the image of "
            f"{width}x{height} pixels: calibrate at this resolution, or set width and height",
        )


def _projection(info: CameraInfo) -> Array:
    P = _sent(info, "P", np.array(info.p, dtype=np.float64).reshape(3, 4))
    if info.k[0] == 0.0:  # by its definition, that of an uncalibrated camera
        raise _refused(info, "has K[0] = 0, an uncalibrated camera: calibrate it")
    return P


def _sent(info: CameraInfo, name: str, matrix: Array) -> Array:
    """K or P of the pixels that are sent: after region of interest and binning."""
    if not np.isfinite(matrix).all():
        raise _refused(info, f"has a {name} that is not finite: calibrate again")
    if matrix[0, 0] == 0.0:
        remedy = "calibrate it, or rectify the image" if name == "P" else "calibrate it"
        raise _refused(info, f"has {name}[0] = 0, an uncalibrated camera: {remedy}")
    if info.width and info.height:  # of the full sensor, as the matrix is
        _check_principal_point(info, matrix[0, 2], matrix[1, 2], info.width, info.height)
    matrix[0, 2] -= info.roi.x_offset
    matrix[1, 2] -= info.roi.y_offset
    matrix[0] /= max(info.binning_x, 1)
    matrix[1] /= max(info.binning_y, 1)
    return matrix


def _camera(info: CameraInfo, matrix: Array) -> Camera:
    fx, fy, cx, cy = (float(matrix[at]) for at in ((0, 0), (1, 1), (0, 2), (1, 2)))
    try:
        return Camera(fx, fy, cx, cy)
    except ValueError as error:
        raise _refused(info, f"cannot be used: {error}") from None


def coefficients(info: CameraInfo) -> Array:
    """D, with the zeros that drivers leave out."""
    lengths = (4,) if info.distortion_model == FISHEYE else (4, 5, 8, 12, 14)
    if info.distortion_model not in (FISHEYE, *OPENCV_MODELS):
        raise _refused(
            info,
            f"has distortion model {info.distortion_model!r}: rectify the image before, or use "
            "plumb_bob, rational_polynomial or equidistant",
        )
    D = np.array(info.d, dtype=np.float64)
    if info.distortion_model == FISHEYE and not D[4:].any():
        D = D[:4]
    fits = [length for length in lengths if length >= len(D)]
    if not fits:
        raise _refused(
            info, f"has {len(D)} numbers in D, {info.distortion_model} has {lengths[-1]}"
        )
    return np.pad(D, (0, fits[0] - len(D)))


def _maps(
    info: CameraInfo, lens: Camera, camera: Camera, R: Array, shape: tuple[int, ...]
) -> Maps:
    fisheye = info.distortion_model == FISHEYE
    make = cv2.fisheye.initUndistortRectifyMap if fisheye else cv2.initUndistortRectifyMap
    size = (shape[1], shape[0])
    first, second = make(lens.matrix, coefficients(info), R, camera.matrix, size, cv2.CV_32FC1)
    return first.astype(np.float32), second.astype(np.float32)


def _refused(info: CameraInfo, reason: str) -> BadInput:
    return BadInput("camera_info", f"camera_info of {info.header.frame_id!r} {reason}")
