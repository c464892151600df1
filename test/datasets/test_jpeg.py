"""JPEGs that are damaged and can be decoded all the same."""

from __future__ import annotations

from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from hydranet_ros.datasets.jpeg import NOT_UNDERSTOOD, JpegCheck, is_whole
from hydranet_ros.datasets.sensor_messages import PixelRange, grey_of_compressed
from hydranet_ros.errors import BadInput

RNG = np.random.default_rng(0)
SCENE = cv2.GaussianBlur(RNG.integers(0, 256, (117, 323, 3), dtype=np.uint8), (0, 0), 1.5)
SCENE = cv2.normalize(SCENE, None, 0, 255, cv2.NORM_MINMAX)
SAMPLINGS = {"420": 0x221111, "422": 0x211111, "444": 0x111111}


def packed(pixels: np.ndarray, *options: int) -> bytes:
    return bytes(cv2.imencode(".jpg", pixels, options)[1].tobytes())


def decoded(data: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE).astype(int)


@pytest.mark.parametrize("quality", [20, 60, 95, 100])
@pytest.mark.parametrize("optimise", [0, 1])
def test_whole_ones_are_whole(quality: int, optimise: int) -> None:
    options = (cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_OPTIMIZE, optimise)
    for height, width in ((117, 323), (112, 320), (33, 65)):
        part = np.ascontiguousarray(SCENE[:height, :width])
        assert is_whole(packed(part[..., 0], *options)) is not False
        for sampling in SAMPLINGS.values():
            coloured = packed(part, *options, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling)
            assert is_whole(coloured) is not False
    assert optimise or is_whole(packed(SCENE, *options)) is True


def test_flat_and_saturated_ones_are_whole() -> None:
    for level in (0, 1, 128, 254, 255):
        assert is_whole(packed(np.full((64, 96), level, np.uint8))) is True


def test_what_is_moved_is_found() -> None:
    """A byte is replaced: where the rest of the image moves aside, it is damaged."""
    data = packed(SCENE[..., 0])
    good, start, moved, found = decoded(data), 650, 0, 0
    for _ in range(300):
        damaged = bytearray(data)
        damaged[int(RNG.integers(start, len(data) - 2))] = int(RNG.integers(255))
        image = decoded(bytes(damaged))
        # Blocks of 8 pixels whose texture is another one.
        difference = image - good
        difference = difference[:112, :320].reshape(14, 8, 40, 8)
        changed = difference.std(axis=(1, 3)) > 5.0
        if changed.mean() > 0.1:
            moved += 1
            found += is_whole(bytes(damaged)) is False
    assert moved > 50
    assert found >= 0.99 * moved


def test_other_kinds_are_not_judged() -> None:
    assert is_whole(packed(SCENE, cv2.IMWRITE_JPEG_PROGRESSIVE, 1)) is None
    assert is_whole(packed(SCENE, cv2.IMWRITE_JPEG_RST_INTERVAL, 4)) is None
    assert is_whole(packed(SCENE[:16, :16])) is None
    assert is_whole(b"") is None
    assert is_whole(cv2.imencode(".png", SCENE)[1].tobytes()) is None


def with_something_at_the_end(data: bytes) -> bytes:
    """As a camera may send it that has its own idea of the end."""
    return data[:-2] + b"\x00\x12\x34\x56\x78" + data[-2:]


def test_a_camera_with_its_own_idea_of_a_jpeg_is_believed_in_the_end() -> None:
    check, strange = JpegCheck(), with_something_at_the_end(packed(SCENE[..., 0]))
    judged = [check.is_damaged(strange) for _ in range(NOT_UNDERSTOOD + 5)]
    assert judged == [True] * NOT_UNDERSTOOD + [False] * 5
    assert not check.is_damaged(packed(SCENE[..., 0]))
    assert check.is_damaged(strange)


def test_a_damaged_message_is_refused() -> None:
    message = SimpleNamespace(format="jpeg", data=with_something_at_the_end(packed(SCENE[..., 0])))
    with pytest.raises(BadInput, match="damaged"):
        grey_of_compressed(message, PixelRange())
    message.data = packed(SCENE[..., 0])
    assert grey_of_compressed(message, PixelRange()).shape == (117, 323)
