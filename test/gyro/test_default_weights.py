"""The weights that ship: small, described, accurate, and in doubt where they should be.

Pictures are spoiled here in ways of this file's own, not by `training.unreadable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.gyro.flow import FlowConfig, FlowEstimator
from hydranet_ros.gyro.predictor import Predictor
from hydranet_ros.gyro.visual_gyro import DEFAULT_WEIGHTS, GyroConfig, VisualGyro, open_predictor
from hydranet_ros.simulation.building import Building
from hydranet_ros.simulation.config import BuildingConfig, StreetConfig
from hydranet_ros.simulation.street import Street
from hydranet_ros.training.calibration import area_under_roc
from hydranet_ros.training.worlds import named_world

Image = np.ndarray


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return open_predictor(GyroConfig(device="cpu"))


def test_they_are_small_and_say_where_they_are_from(predictor: Predictor) -> None:
    assert DEFAULT_WEIGHTS.stat().st_size < 8e6
    provenance = predictor.weights.provenance
    assert provenance.flow_method == "dis"
    assert provenance.data.startswith("simulated")
    assert provenance.command.startswith("hydranet train")
    assert provenance.validation["auroc_unusual"] > 0.95


def drive(
    predictor: Predictor, street: Street | Building, stereo: bool = False
) -> Iterator[tuple[RelativeRotation, np.ndarray]]:
    """Each rotation along a street, with its error."""
    config = GyroConfig(cameras="stereo" if stereo else "mono")
    gyro = VisualGyro(street.camera, config, predictor)
    C_w_c = street.T_w_c[:, :3, :3]
    for i, stamp in enumerate(street.stamps_ns):
        images = (street.photograph(i, side) for side in range(1 + stereo))
        rotation = gyro.update(Frame(stamp, *images))
        assert (rotation is None) == (i == 0)
        if rotation is not None:
            yield rotation, lie.so3_log(rotation.C_2_1 @ C_w_c[i - 1].T @ C_w_c[i])


def test_a_new_street_is_read_with_an_honest_covariance(predictor: Predictor) -> None:
    street = Street(StreetConfig(seed=12345, frames=30))
    found = list(drive(predictor, street))
    stamps = [(rotation.stamp_1_ns, rotation.stamp_2_ns) for rotation, _ in found]
    assert stamps == list(pairwise(street.stamps_ns))
    assert np.mean([np.degrees(np.linalg.norm(phi)) for _, phi in found]) < 0.05
    assert np.mean([phi @ np.linalg.solve(r.Sigma_2_1, phi) for r, phi in found]) < 4.5


@pytest.mark.slow
def test_two_cameras_are_no_worse_on_streets_and_twice_as_good_in_offices(
    predictor: Predictor,
) -> None:
    """With an exact reference; that of KITTI has errors as large as the difference."""
    streets = [Street(StreetConfig(seed=seed, frames=60)) for seed in range(900001, 900005)]
    one, two = (
        np.mean([np.linalg.norm(phi) for s in streets for _, phi in drive(predictor, s, stereo)])
        for stereo in (False, True)
    )
    assert two <= 1.03 * one
    offices = [
        Building(BuildingConfig(seed=seed, frames=61, place="office", motion=motion, rate_hz=20.0))
        for seed, motion in ((900002, "hand"), (900004, "robot"))
    ]
    one, two = (
        np.mean([over_ten_frames(predictor, office, stereo) for office in offices])
        for stereo in (False, True)
    )
    assert two <= 0.5 * one


def over_ten_frames(predictor: Predictor, world: Building, stereo: bool) -> float:
    """Mean error of the product of ten rotations in a row, rad."""
    found = [rotation.C_2_1 for rotation, _ in drive(predictor, world, stereo)]
    true = world.T_w_c[:, :3, :3]
    return float(
        np.mean(
            [
                np.linalg.norm(
                    lie.so3_log(
                        np.linalg.multi_dot(found[k : k + 10][::-1]) @ true[k].T @ true[k + 10]
                    )
                )
                for k in range(0, len(found) - 9, 10)
            ]
        )
    )


def tiles(image: Image, order: np.ndarray) -> Image:
    rows, columns = 4, 6
    height, width = image.shape[0] // rows, image.shape[1] // columns
    out = image.copy()
    for target, source in enumerate(order):
        (i, j), (k, m) = divmod(target, columns), divmod(int(source), columns)
        out[i * height : (i + 1) * height, j * width : (j + 1) * width] = image[
            k * height : (k + 1) * height, m * width : (m + 1) * width
        ]
    return out


def scrambled(a: Image, b: Image, rng: np.random.Generator) -> tuple[Image, Image]:
    order = rng.permutation(24)
    return tiles(a, order), tiles(b, order)


def blurred(a: Image, b: Image, rng: np.random.Generator) -> tuple[Image, Image]:
    sigma = a.shape[1] / 80.0
    return cv2.GaussianBlur(a, (0, 0), sigma), cv2.GaussianBlur(b, (0, 0), sigma)


def noise(a: Image, b: Image, rng: np.random.Generator) -> tuple[Image, Image]:
    first, second = rng.integers(0, 256, (2, *a.shape)).astype(np.uint8)
    return first, second


def moving_scene(a: Image, b: Image, rng: np.random.Generator) -> tuple[Image, Image]:
    """A standing camera, and half a dozen things that pass by at their own speeds."""
    first, second = a.copy(), a.copy()
    height, width = a.shape
    for _ in range(6):
        h, w = int(rng.uniform(0.2, 0.5) * height), int(rng.uniform(0.08, 0.25) * width)
        y, x = int(rng.integers(0, height - h)), int(rng.integers(60, width - w - 60))
        v, u = int(rng.integers(0, height - h)), int(rng.integers(0, width - w))
        step = int(rng.integers(width // 240, width // 30)) * int(rng.choice([-1, 1]))
        first[y : y + h, x : x + w] = b[v : v + h, u : u + w]
        second[y : y + h, x + step : x + step + w] = b[v : v + h, u : u + w]
    return first, second


def unrelated(a: Image, b: Image, rng: np.random.Generator) -> tuple[Image, Image]:
    """The second picture is of another place: mirrored, or rolled far."""
    if rng.random() < 0.5:
        return a, np.ascontiguousarray(b[:, ::-1])
    return a, np.roll(b, int(rng.uniform(0.3, 0.7) * b.shape[1]), axis=1)


UNUSUAL: dict[str, Callable[[Image, Image, np.random.Generator], tuple[Image, Image]]] = {
    "blank": lambda a, b, rng: (np.full_like(a, 128), np.full_like(a, 128)),
    "noise": noise,
    "scrambled": scrambled,
    "unrelated": unrelated,
    "blurred": blurred,
    "moving scene": moving_scene,
}


def doubt(
    predictor: Predictor, flow: FlowEstimator, pairs: list[tuple[Image, Image]]
) -> np.ndarray:
    found = [flow(*pair) for pair in pairs]
    names = ("flow", "mask", "trusted", "texture")
    inputs = (np.array([getattr(each, name) for each in found]) for name in names)
    epistemic = predictor.predict(*inputs).epistemic
    return np.trace(epistemic, axis1=1, axis2=2)


def doubts(
    predictor: Predictor, camera: Camera, images: list[Image], every: int = 1
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    assert predictor.model.config.grid is not None
    height, width = images[0].shape
    grid = predictor.model.config.grid.covering(camera, (height, width))
    flow = FlowEstimator(camera, (height, width), FlowConfig(method="dis"), grid)
    pairs = list(pairwise(images))[::every]
    rng = np.random.default_rng(0)
    odd = {
        name: doubt(predictor, flow, [spoil(*pair, rng) for pair in pairs[::4]])
        for name, spoil in UNUSUAL.items()
    }
    return doubt(predictor, flow, pairs), odd


PLACES = ("street", "office", "desk")


def place_images(name: str, frames: int) -> tuple[Camera, list[Image]]:
    """Frames of a street or of a room, some apart: as much to see as there is."""
    world: Street | Building
    if name == "street":
        world = Street(StreetConfig(seed=54321, frames=frames))
        step = 1
    else:
        world = Building(named_world(name))
        step = max(1, len(world) // frames)
    pairs = [(i, i + 1) for i in range(0, min(len(world) - 1, step * (frames - 1)), step)]
    return world.camera.left, [world.photograph(k) for pair in pairs for k in pair]


@pytest.fixture(scope="module")
def doubted(predictor: Predictor) -> dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Of each place: doubt on its frames as they are, and on the same frames spoiled."""
    return {name: doubts(predictor, *place_images(name, 13), every=2) for name in PLACES}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_doubt_grows_on_what_is_unusual_in_streets_and_rooms(
    doubted: dict[str, tuple[np.ndarray, dict[str, np.ndarray]]], kind: str
) -> None:
    """An unusual pair of any place against the ordinary ones of streets and of rooms alike."""
    odd = np.concatenate([odds[kind] for _, odds in doubted.values()])
    street = doubted["street"][0]
    rooms = np.concatenate([usual for name, (usual, _) in doubted.items() if name != "street"])
    assert area_under_roc(street, odd) > 0.9
    assert area_under_roc(rooms, odd) > 0.9


@pytest.mark.slow
def test_doubt_tells_real_frames_from_unusual_ones(predictor: Predictor, data: Path) -> None:
    source = KittiFolder(data / "kitti" / "sequences" / "09")
    usual, odd = doubts(predictor, source.camera.left, [frame.left for frame in source])
    found = {name: area_under_roc(usual, values) for name, values in odd.items()}
    print(found)
    assert min(found.values()) >= 0.95
