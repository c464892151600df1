"""Image messages of every kind become the same grey image."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from sensor_msgs.msg import CompressedImage, Image

from hydranet_ros.datasets.sensor_messages import ENCODINGS, grey_of_raw
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
        (changed(encoding="yuv422"), "encoding 'yuv422' is not known: use one of mono8"),
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
