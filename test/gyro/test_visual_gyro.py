"""The visual gyro on images that tell nothing: no rotation, and the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="rotations from images need torch")

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Frame
from hydranet_ros.gyro.visual_gyro import GyroConfig, GyroLost, VisualGyro, open_predictor
from hydranet_ros.pipeline import Pipeline, PipelineConfig
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

PREDICTOR = open_predictor(GyroConfig(device="cpu"))
PERIOD_NS = 100_000_000


@pytest.fixture(scope="module")
def street() -> tuple[VisualGyro, list[Frame]]:
    made = Street(StreetConfig(frames=8))
    frames = [Frame(each.stamp_ns, each.left, each.right) for each in made]
    return VisualGyro(made.camera, predictor=PREDICTOR), frames


def blank(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    height, width = shape
    columns, rows = np.arange(width), np.arange(height)[:, None]
    images = {
        "black": np.zeros(shape),
        "white": np.full(shape, 255.0),
        "grey": np.full(shape, 128.0),
        "upright stripes": np.where(columns // 10 % 2, 200.0, 50.0) + 0.0 * rows,
        "level stripes": np.where(rows // 10 % 2, 200.0, 50.0) + 0.0 * columns,
        "ramp": 255.0 * columns / width + 0.0 * rows,
    }
    if kind == "snow":
        return rng.integers(0, 256, shape).astype(np.uint8)
    return np.clip(images[kind] + rng.normal(0.0, 2.0, shape), 0, 255).astype(np.uint8)


KINDS = ("black", "white", "grey", "upright stripes", "level stripes", "ramp", "snow")


@pytest.mark.parametrize("kind", KINDS)
def test_blank_images_give_no_rotation(street: tuple[VisualGyro, list[Frame]], kind: str) -> None:
    """Between blank images, from a real one to a blank one, and back."""
    gyro, frames = street
    gyro.reset()
    rng, shape = np.random.default_rng(0), frames[0].left.shape
    images = [frames[0].left, *(blank(kind, shape, rng) for _ in range(3)), frames[1].left]
    for i, image in enumerate(images):
        rotation = gyro.update(Frame(i * PERIOD_NS, image))
        bridged = i == len(images) - 1 and kind != "snow"
        assert (rotation is not None) == bridged, i
        if 0 < i < len(images) - 1:
            assert gyro.lost in (GyroLost.NO_TEXTURE, GyroLost.NO_MATCH)


def test_a_repeated_image_gives_no_rotation_and_is_bridged(
    street: tuple[VisualGyro, list[Frame]],
) -> None:
    gyro, frames = street
    gyro.reset()
    gyro.update(frames[0])
    for i in range(1, 4):
        assert gyro.update(Frame(i * PERIOD_NS, frames[0].left)) is None
        assert gyro.lost is GyroLost.REPEATED_IMAGE
    rotation = gyro.update(Frame(4 * PERIOD_NS, frames[1].left))
    assert rotation is not None
    assert (rotation.stamp_1_ns, rotation.stamp_2_ns) == (frames[0].stamp_ns, 4 * PERIOD_NS)


def test_a_long_gap_starts_again(street: tuple[VisualGyro, list[Frame]]) -> None:
    gyro, frames = street
    gyro.reset()
    gyro.update(frames[0])
    assert gyro.update(Frame(2 * 10**9, frames[1].left)) is None
    assert gyro.lost is GyroLost.LONG_GAP
    assert gyro.update(Frame(2 * 10**9 + PERIOD_NS, frames[2].left)) is not None


def test_between_two_images(street: tuple[VisualGyro, list[Frame]]) -> None:
    gyro, frames = street
    rotation = gyro.between(frames[0].left, frames[1].left)
    colour = gyro.between(*(np.dstack([f.left] * 3) for f in frames[:2]))
    np.testing.assert_allclose(colour.C_2_1, rotation.C_2_1, atol=1e-12)
    with pytest.raises(BadInput, match="no texture"):
        gyro.between(frames[0].left, np.zeros_like(frames[0].left))


def test_a_camera_that_repeats_its_last_image_in_a_turn_is_not_believed(data: Path) -> None:
    """Ten repeated frames in a turn of KITTI 09: no confident wrong pose, then or later."""
    source = KittiFolder(data / "kitti" / "sequences" / "09", max_frames=190)
    assert source.T_w_c is not None
    frames, first, again = list(source), 130, 12
    pipeline = Pipeline(source.camera, PipelineConfig(), PREDICTOR)
    states: list[FusedState] = []
    for i, frame in enumerate(frames[100:], start=100):
        if first <= i < first + again:
            frame = Frame(frame.stamp_ns, frames[first - 1].left, frames[first - 1].right)
        step = pipeline.update(frame)
        if first <= i < first + again:
            assert step.rotation is None
            assert step.vo is not None
            assert step.vo.pose is None
        states += step.states
    index = {int(stamp): i for i, stamp in enumerate(source.stamps_ns)}
    for state in states:
        truth = lie.se3_inverse(source.T_w_c[100]) @ source.T_w_c[index[state.stamp_ns]]
        xi = lie.se3_log(lie.se3_inverse(state.T_w_c) @ truth)
        in_sigmas = (np.abs(xi) / np.sqrt(np.diag(state.Sigma_c_w))).max()
        metres, degrees = np.linalg.norm(xi[:3]), np.rad2deg(np.linalg.norm(xi[3:]))
        assert in_sigmas < 5.0 or (metres < 0.5 and degrees < 2.0), index[state.stamp_ns]
