"""The visual gyro: in any mount, at rest, with its memory; and on images that tell nothing."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="rotations from images need torch")

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame, Image
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.gyro import visual_gyro
from hydranet_ros.gyro.flow import FlowConfig
from hydranet_ros.gyro.memory import Memory, MemoryConfig
from hydranet_ros.gyro.visual_gyro import GyroConfig, GyroLost, VisualGyro, open_predictor
from hydranet_ros.pipeline import Pipeline, PipelineConfig
from hydranet_ros.simulation.building import Building
from hydranet_ros.simulation.config import BuildingConfig, StreetConfig
from hydranet_ros.simulation.street import Street

PREDICTOR = open_predictor(GyroConfig(device="cpu"))
PERIOD_NS = 100_000_000


@pytest.fixture(scope="module")
def street() -> tuple[VisualGyro, list[Frame]]:
    made = Street(StreetConfig(frames=8))
    frames = [Frame(each.stamp_ns, each.left, each.right) for each in made]
    return VisualGyro(made.camera, predictor=PREDICTOR), frames


@pytest.fixture(scope="module")
def worlds() -> list[Street | Building]:
    """Nothing moves by itself in the rooms."""
    office = BuildingConfig(seed=11, frames=24, place="office", motion="robot", people=0)
    desk = replace(office, seed=15, place="desk", motion="hand", rate_hz=20.0)
    return [Building(office), Building(desk), Street(StreetConfig(seed=14, frames=24))]


@lru_cache(maxsize=100)
def photo(world: Street | Building, k: int) -> Image:
    """Pictures take longer to render than to read."""
    return world.photograph(k)


# --- in any mount --------------------------------------------------------------------------------

QUARTER = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


def on_its_side(image: Image, camera: Camera, quarters: int) -> tuple[Image, Camera]:
    """The picture, and the camera, turned counterclockwise: x' = y, y' = -x each time."""
    for _ in range(quarters):
        width = image.shape[1]
        image = np.ascontiguousarray(np.rot90(image))
        camera = Camera(camera.fy, camera.fx, camera.cy, width - 1 - camera.cx)
    return image, camera


@pytest.mark.parametrize("quarters", [1, 2, 3], ids=["on a side", "upside down", "on the other"])
def test_a_camera_in_any_mount_says_the_same_in_its_own_axes(
    worlds: list[Street | Building], quarters: int
) -> None:
    R = np.linalg.matrix_power(QUARTER, quarters)
    apart, sizes = [], []
    for world in worlds:
        upright = VisualGyro(world.camera.left, predictor=PREDICTOR)
        camera = on_its_side(world.photograph(0), world.camera.left, quarters)[1]
        mounted = VisualGyro(camera, predictor=PREDICTOR)
        for k in range(0, 20, 4):
            pair = photo(world, k), photo(world, k + 1)
            here = upright.between(*pair)
            there = mounted.between(
                *(on_its_side(each, world.camera.left, quarters)[0] for each in pair)
            )
            e = lie.so3_log(R.T @ there.C_2_1 @ R @ here.C_2_1.T)
            apart.append([np.degrees(np.linalg.norm(e)), e @ np.linalg.solve(here.Sigma_2_1, e)])
            sizes.append(np.sqrt(np.trace(there.Sigma_2_1) / np.trace(here.Sigma_2_1)))
    degrees, in_sigmas = np.median(apart, axis=0)
    print(degrees, in_sigmas, np.median(sizes))
    assert degrees < 0.03
    assert in_sigmas < 1.0
    assert 1.0 / 1.2 < np.median(sizes) < 1.2


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["made", "warmed up"])
def test_a_setting_that_comes_while_another_is_taken_is_used(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """As from another thread, while a frame is under way."""
    gyro = VisualGyro(Camera(120.0, 120.0, 80.0, 60.0), predictor=PREDICTOR)
    gyro.update(Frame(0, np.zeros((120, 160), np.uint8)))
    one = replace(gyro.config, flow=replace(gyro.config.flow, margin_cells=1))
    two = replace(one, flow=replace(one.flow, pixels_per_cell=1))
    made: list[FlowConfig] = []
    new, warm = gyro._new_comparison, visual_gyro._predict_nothing

    def noted(*given: Any) -> object:
        made.append(gyro.config.flow)
        found = new(*given)
        if where == "made":
            gyro.apply(two)
        return found

    def warmed(*given: Any) -> None:
        warm(*given)
        if where == "warmed up":
            gyro.apply(two)

    monkeypatch.setattr(gyro, "_new_comparison", noted)
    monkeypatch.setattr(visual_gyro, "_predict_nothing", warmed)
    gyro.apply(one)
    for k in (1, 2, 3):
        gyro.update(Frame(k * PERIOD_NS, np.full((120, 160), k, np.uint8)))
    assert made == [one.flow, two.flow]


# --- with its memory -----------------------------------------------------------------------------


def errors_over(rotations: list[RelativeRotation], C_w_c: np.ndarray, length: int) -> list[float]:
    """In deg, over so many frames."""
    found = []
    for k in range(len(rotations) - length + 1):
        total = np.eye(3)
        for each in rotations[k : k + length]:
            total = each.C_2_1 @ total
        found.append(np.linalg.norm(lie.so3_log(total @ C_w_c[k].T @ C_w_c[k + length])))
    return np.degrees(found).tolist()


def test_over_ten_frames_it_is_better_with_its_memory(worlds: list[Street | Building]) -> None:
    errors: dict[int, list[float]] = {0: [], 8: []}
    for frames, values in errors.items():
        for world in worlds:
            config = GyroConfig(memory=MemoryConfig(frames=frames))
            gyro = VisualGyro(world.camera.left, config, PREDICTOR)
            found = [
                gyro.update(Frame(int(stamp), photo(world, k)))
                for k, stamp in enumerate(world.stamps_ns)
            ]
            assert (gyro.since_reference is None) == (frames == 0)
            rotations = [each for each in found[1:] if each is not None]
            assert len(rotations) == len(world) - 1
            values += errors_over(rotations, world.T_w_c[:, :3, :3], 10)
    print({frames: np.mean(values) for frames, values in errors.items()})
    assert np.mean(errors[8]) < 0.7 * np.mean(errors[0])


def test_the_rotation_since_the_reference_has_its_stamps(worlds: list[Street | Building]) -> None:
    world = worlds[0]
    gyro = VisualGyro(world.camera.left, predictor=PREDICTOR)
    C_w_c, stamps = world.T_w_c[:, :3, :3], list(world.stamps_ns)
    for k, stamp in enumerate(stamps[:12]):
        gyro.update(Frame(stamp, photo(world, k)))
        since = gyro.since_reference
        if k == 0:
            assert since is None
            continue
        assert since is not None
        assert since.stamp_2_ns == stamp
        first = stamps.index(since.stamp_1_ns)
        error = lie.so3_log(since.C_2_1 @ C_w_c[first].T @ C_w_c[k])
        assert np.degrees(np.linalg.norm(error)) < 0.2
    gyro.reset()
    assert gyro.since_reference is None


def test_after_a_reset_it_is_as_new(worlds: list[Street | Building]) -> None:
    """Nothing that was learnt of one drive is left for the next."""
    world = worlds[1]
    frames = [Frame(k * PERIOD_NS, photo(world, k)) for k in range(12)]
    gyro, new = (VisualGyro(world.camera.left, predictor=PREDICTOR) for _ in range(2))
    for k in range(12):
        gyro.update(Frame(k * PERIOD_NS, photo(world, 23 - k)))
    gyro.reset()
    for frame in frames:
        found, expected = gyro.update(frame), new.update(frame)
        if found is None or expected is None:
            assert found is expected
        else:
            np.testing.assert_array_equal(found.C_2_1, expected.C_2_1)
            np.testing.assert_array_equal(found.Sigma_2_1, expected.Sigma_2_1)


def test_looking_at_the_next_frame_beside_telling_of_this_one_changes_nothing(
    worlds: list[Street | Building],
) -> None:
    """As the node works where frames wait."""
    world = worlds[0]
    frames = [Frame(stamp, photo(world, k)) for k, stamp in enumerate(world.stamps_ns[:12])]
    one, two = (VisualGyro(world.camera.left, predictor=PREDICTOR) for _ in range(2))
    alone = [one.update(frame) for frame in frames]
    with ThreadPoolExecutor(1) as beside:
        told = [beside.submit(two.tell, two.look(frame)) for frame in frames]
        beside_each_other = [each.result() for each in told]
    assert alone[0] is beside_each_other[0] is None
    for a, b in zip(alone[1:], beside_each_other[1:], strict=True):
        assert a is not None
        assert b is not None
        np.testing.assert_array_equal(a.C_2_1, b.C_2_1)
        np.testing.assert_array_equal(a.Sigma_2_1, b.Sigma_2_1)


def test_a_memory_that_fails_begins_anew(
    worlds: list[Street | Building], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it could not solve would fail with every frame that follows."""
    world, solve = worlds[0], Memory._remembered
    gyro, failed = VisualGyro(world.camera.left, predictor=PREDICTOR), []

    def degenerate(self: Memory, *given: Any) -> Any:
        if not failed and self._since == 3:
            failed.append(self)
        if self in failed:
            raise np.linalg.LinAlgError("singular")
        return solve(self, *given)

    monkeypatch.setattr(Memory, "_remembered", degenerate)
    came = []
    for k, stamp in enumerate(world.stamps_ns[:8]):
        try:
            came.append(gyro.update(Frame(stamp, photo(world, k))) is not None)
        except np.linalg.LinAlgError:
            came.append(False)
    assert came == [False, True, True, False, True, True, True, True]


def test_equal_frames_give_equal_bytes(worlds: list[Street | Building]) -> None:
    world, runs = worlds[1], []
    for _ in range(2):
        gyro = VisualGyro(world.camera.left, predictor=PREDICTOR)
        found = [gyro.update(Frame(k * PERIOD_NS, photo(world, k))) for k in range(8)]
        runs.append([(r.C_2_1.tobytes(), r.Sigma_2_1.tobytes()) for r in found if r is not None])
    assert len(runs[0]) == 7
    assert runs[0] == runs[1]


# --- at rest -------------------------------------------------------------------------------------


def at_rest(image: Image, camera: Camera, frames: int) -> tuple[float, float]:
    """Of a camera at rest, with noise and flickering lamps: turns that are reported, in deg.

    The largest yaw since the reference, and all rotations from frame to frame put together.
    """
    gyro, rng = VisualGyro(camera, predictor=PREDICTOR), np.random.default_rng(0)
    total, yaw = np.eye(3), 0.0
    for k in range(frames):
        flicker = 1.0 + 0.04 * np.sin(2.0 * np.pi * 0.137 * k)
        levels = flicker * image + 2.0 * rng.standard_normal(image.shape)
        noisy = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
        rotation = gyro.update(Frame(k * PERIOD_NS, noisy))
        assert (rotation is None) == (k == 0)
        if rotation is None:
            continue
        total = rotation.C_2_1 @ total
        since = gyro.since_reference
        assert since is not None
        assert since.stamp_1_ns == 0
        if k > 2:  # before, it is the network's
            yaw = max(yaw, abs(float(np.degrees(lie.so3_log(since.C_2_1)[1]))))
    return yaw, float(np.degrees(np.linalg.norm(lie.so3_log(total))))


@pytest.fixture(scope="module")
def real_minute(data: Path) -> tuple[float, float]:
    """A frame of KITTI, for a minute."""
    source = KittiFolder(data / "kitti" / "sequences" / "09", max_frames=1)
    frame = next(iter(source))
    camera = source.camera if isinstance(source.camera, Camera) else source.camera.left
    return at_rest(frame.left, camera, 600)


@pytest.fixture(scope="module")
def office_minute(worlds: list[Street | Building]) -> tuple[float, float]:
    return at_rest(worlds[0].photograph(0), worlds[0].camera.left, 600)


def test_at_rest_it_does_not_drift_in_six_seconds(worlds: list[Street | Building]) -> None:
    yaw, _ = at_rest(worlds[0].photograph(0), worlds[0].camera.left, 60)
    assert yaw < 0.05


@pytest.mark.slow
def test_at_rest_it_does_not_drift_in_a_minute(office_minute: tuple[float, float]) -> None:
    assert office_minute[0] < 0.05


@pytest.mark.slow
def test_at_rest_before_a_real_scene_it_does_not_drift(real_minute: tuple[float, float]) -> None:
    assert real_minute[0] < 0.05


@pytest.mark.slow
def test_at_rest_rotations_add_up_to_none(office_minute: tuple[float, float]) -> None:
    assert office_minute[1] < 0.05


@pytest.mark.slow
def test_at_rest_before_a_real_scene_they_do(real_minute: tuple[float, float]) -> None:
    assert real_minute[1] < 0.05


# --- images that tell nothing --------------------------------------------------------------------


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


def test_a_right_image_is_good_for_something() -> None:
    memory = MemoryConfig(frames=0)
    with pytest.raises(ValueError, match="set right to flow"):
        GyroConfig(cameras="stereo", memory=memory)
    assert GyroConfig(cameras="stereo", right="flow", memory=memory).both_flows
    assert not GyroConfig(cameras="stereo").both_flows
    assert not GyroConfig(right="flow").both_flows


COMPILES = """
import sys
from importlib.util import find_spec
import numpy as np
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.gyro.visual_gyro import GyroConfig, VisualGyro, open_warm

def compiled():
    loops = [m for n, m in sys.modules.items() if n.startswith("hydranet_ros") and "_numba" in n]
    return {f.__qualname__: len(f.signatures) for m in loops for f in vars(m).values()
            if hasattr(f, "signatures")}

config = GyroConfig(cameras=sys.argv[1])
predictor = open_warm(config)
before = compiled()
camera = StereoCamera(Camera(500.0, 500.0, 320.0, 240.0), 0.1)
gyro = VisualGyro(camera if sys.argv[1] == "stereo" else camera.left, config, predictor)
image = np.kron(np.random.default_rng(1).integers(0, 256, (60, 80)), np.ones((8, 8)))
for k in range(20):
    left = np.roll(image, 2 * k, axis=1).astype(np.uint8)
    gyro.update(Frame(50_000_000 * k, left, np.roll(left, -4, axis=1)))
assert any(before.values()), before
print({name: count for name, count in compiled().items() if count != before.get(name)})
"""


@pytest.mark.parametrize("cameras", ["mono", "stereo"])
def test_nothing_is_compiled_in_a_drive(cameras: str) -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    done = subprocess.run(
        [sys.executable, "-c", COMPILES, cameras], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "{}", done.stdout + done.stderr
