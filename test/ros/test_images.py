"""Image messages of every kind become the same grey image."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from sensor_msgs.msg import CompressedImage, Image

from hydranet_ros.datasets.sensor_messages import ENCODINGS, PixelRange, grey_of_raw
from hydranet_ros.errors import BadInput
from hydranet_ros.ros.conversions import grey, image_message

RNG = np.random.default_rng(0)
BGR = cv2.GaussianBlur(RNG.integers(0, 256, (24, 36, 3), dtype=np.uint8), (5, 5), 0)
GREY = cv2.cvtColor(BGR, cv2.COLOR_BGR2GRAY)


def message(pixels: np.ndarray, encoding: str, padding: int = 0) -> Image:
    """Rows of any type, with some bytes of rubbish after each."""
    rows = np.ascontiguousarray(pixels).view(np.uint8).reshape(len(pixels), -1)
    rubbish = np.full((len(rows), padding), 171, dtype=np.uint8)
    data = np.hstack([rows, rubbish])
    height, width = pixels.shape[:2]
    return Image(
        height=height, width=width, encoding=encoding, step=data.shape[1], data=data.tobytes()
    )


def coloured(encoding: str) -> np.ndarray:
    rgb, alpha = BGR[..., ::-1], np.full((*GREY.shape, 1), 7, dtype=np.uint8)
    return {
        "bgr8": BGR,
        "8UC3": BGR,
        "rgb8": rgb,
        "bgra8": np.dstack([BGR, alpha]),
        "8UC4": np.dstack([BGR, alpha]),
        "rgba8": np.dstack([rgb, alpha]),
        "mono8": GREY,
        "8UC1": GREY,
    }[encoding]


@pytest.mark.parametrize("padding", [0, 1, 12])
@pytest.mark.parametrize(
    "encoding", ["mono8", "8UC1", "bgr8", "8UC3", "rgb8", "bgra8", "8UC4", "rgba8"]
)
def test_eight_bits(encoding: str, padding: int) -> None:
    found = grey(message(coloured(encoding), encoding, padding))
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, GREY)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("encoding", ["mono16", "16UC1"])
def test_sixteen_bits_of_either_byte_order(encoding: str, order: str) -> None:
    wide = GREY.astype(np.uint16) * 257
    given = message(wide.astype(f"{order}u2"), encoding, padding=6)
    given.is_bigendian = int(order == ">")
    np.testing.assert_array_equal(grey_of_raw(given), GREY)


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_bayer_patterns(pattern: str) -> None:
    # One colour all over, so that the mosaic's grey is known wherever there are neighbours.
    colour = {"r": 200, "g": 90, "b": 20}
    tile = np.array([colour[p] for p in pattern], dtype=np.uint8).reshape(2, 2)
    found = grey(message(np.tile(tile, (12, 18)), f"bayer_{pattern}8"))
    expected = round(0.299 * 200 + 0.587 * 90 + 0.114 * 20)
    assert np.abs(found[2:-2, 2:-2].astype(int) - expected).max() <= 1


def interleaved(encoding: str) -> np.ndarray:
    """Luma with chroma of no meaning, (h, w, 2)."""
    chroma = RNG.integers(0, 256, GREY.shape, dtype=np.uint8)
    first = encoding in ("yuv422_yuy2", "yuyv")
    return np.dstack([GREY, chroma] if first else [chroma, GREY])


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("encoding", ["yuv422", "uyvy", "yuv422_yuy2", "yuyv"])
def test_interleaved_yuv_has_its_luma(encoding: str, padding: int) -> None:
    pixels = interleaved(encoding)
    found = grey(message(pixels, encoding, padding))
    np.testing.assert_array_equal(found, GREY)
    uyvy = encoding in ("yuv422", "uyvy")
    code = cv2.COLOR_YUV2GRAY_UYVY if uyvy else cv2.COLOR_YUV2GRAY_YUY2  # as cv_bridge has it
    np.testing.assert_array_equal(found, cv2.cvtColor(pixels, code))


@pytest.mark.parametrize("height", [24, 23])
@pytest.mark.parametrize(("encoding", "chroma"), [("nv12", 0.5), ("nv21", 0.5), ("nv24", 2.0)])
def test_planar_yuv_has_its_luma(encoding: str, chroma: float, height: int) -> None:
    plane = RNG.integers(0, 256, (int(np.ceil(height * chroma)), 36), dtype=np.uint8)
    given = message(np.vstack([GREY[:height], plane]), encoding, padding=4)
    given.height = height
    np.testing.assert_array_equal(grey(given), GREY[:height])
    given.data = given.data[: 40 * height]
    with pytest.raises(BadInput, match=f"rows of {encoding}"):
        grey(given)


@pytest.mark.parametrize("bits", [10, 12, 14, 16])
@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_wide_bayer_patterns(pattern: str, bits: int) -> None:
    top = 2**bits - 1
    colour = {"r": 0.8, "g": 0.4, "b": 0.1}
    tile = np.array([colour[p] * top for p in pattern]).reshape(2, 2).astype("<u2")
    found = grey(message(np.tile(tile, (12, 18)), f"bayer_{pattern}16"))
    expected = 255 * (0.299 * 0.8 + 0.587 * 0.4 + 0.114 * 0.1)
    assert np.abs(found[2:-2, 2:-2].astype(int) - expected).max() <= 1


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("encoding", ["mono16", "16UC1"])
def test_wide_images_are_scaled_by_what_they_hold(encoding: str, bits: int) -> None:
    """A 12-bit camera in 16 bits is as bright as it is in 8, not black."""
    wide = np.round(GREY / 255.0 * (2**bits - 1)).astype("<u2")
    wide[0, 0] = 2**bits - 1
    found = grey(message(wide, encoding)).astype(int)
    assert np.abs(found - GREY)[1:].max() <= 1
    png = cv2.imencode(".png", wide)[1].tobytes()
    same = grey(CompressedImage(format="16UC1; png compressed", data=png))
    np.testing.assert_array_equal(same, found)


def test_the_range_of_a_stream_never_shrinks() -> None:
    """A cloud before the sun does not brighten the image of a 12-bit camera."""
    white = PixelRange()
    bright, dark = (message(np.full((4, 4), v, dtype="<u2"), "mono16") for v in (4000, 500))
    assert grey(dark, white).max() == round(500 * 255 / 1023)
    assert grey(bright, white).max() == round(4000 * 255 / 4095)
    assert grey(dark, white).max() == round(500 * 255 / 4095)


@pytest.mark.parametrize("scale", [1.0, 255.0, 65535.0])
@pytest.mark.parametrize("order", ["<", ">"])
def test_floating_point(order: str, scale: float) -> None:
    pixels = (GREY / 255.0 * scale).astype(f"{order}f4")
    pixels[0, :3] = scale, np.nan, -1.0
    given = message(pixels, "32FC1", padding=4)
    given.is_bigendian = int(order == ">")
    found = grey(given)
    assert tuple(found[0, :3]) == (255, 0, 0)
    np.testing.assert_array_equal(found[1:], GREY[1:])


@pytest.mark.parametrize("encoding", ["bgr", "rgb", "bgra", "rgba"])
def test_wide_colours(encoding: str) -> None:
    wide = coloured(f"{encoding}8").astype("<u2") * 257
    found = grey(message(wide, f"{encoding}16")).astype(int)
    assert np.abs(found - GREY).max() <= 1


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize("colour", [True, False])
def test_compressed(suffix: str, colour: bool) -> None:
    data = cv2.imencode(suffix, BGR if colour else GREY)[1]
    found = grey(CompressedImage(format=suffix[1:], data=data.tobytes()))
    np.testing.assert_array_equal(found, cv2.imdecode(data, cv2.IMREAD_GRAYSCALE))
    assert np.abs(found.astype(float) - GREY).mean() < (1.0 if suffix == ".png" else 8.0)


def changed(**fields: object) -> Image:
    given = message(GREY, "mono8")
    for name, value in fields.items():
        setattr(given, name, value)
    return given


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (changed(encoding="yuv411"), "encoding 'yuv411' is not known: use one of mono8"),
        (changed(step=35), "step 35 is too short: 36 pixels of mono8 need 36 bytes"),
        (changed(height=25), "data has 864 bytes instead of step 36 times height 25"),
        (changed(data=b""), "data has 0 bytes"),
        (changed(width=0), "image is empty: 0x24 pixels"),
        (changed(encoding="bgr8"), "step 36 is too short: 36 pixels of bgr8 need 108 bytes"),
        (CompressedImage(format="jpeg", data=b"rubbish"), "7 bytes, format 'jpeg'"),
        (CompressedImage(format="jpeg", data=b""), "0 bytes"),
        (
            CompressedImage(format="png", data=cv2.imencode(".png", GREY)[1].tobytes()[:40]),
            "not an image",
        ),
    ],
)
def test_what_is_wrong_is_told(given: Image | CompressedImage, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        grey(given)


def test_cv_bridge_gives_the_same() -> None:
    bridge = pytest.importorskip("cv_bridge", reason="cv_bridge is not installed").CvBridge()
    for encoding in ("mono8", "bgr8", "rgb8", "bgra8", "rgba8"):
        given = message(coloured(encoding), encoding, padding=4)
        np.testing.assert_array_equal(bridge.imgmsg_to_cv2(given, "mono8"), grey_of_raw(given))
    wide = message(GREY.astype("<u2") * 257, "mono16")
    np.testing.assert_array_equal(bridge.imgmsg_to_cv2(wide, "mono8"), grey_of_raw(wide))


def test_an_image_survives_a_message() -> None:
    np.testing.assert_array_equal(grey(image_message(GREY[:, ::2])), GREY[:, ::2])
    np.testing.assert_array_equal(grey(image_message(BGR, "bgr8")), GREY)
    assert set(ENCODINGS) >= {"mono8", "bgr8", "rgb8", "bgra8", "rgba8", "mono16", "16UC1"}
