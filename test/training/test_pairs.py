"""Flow pairs of simulated drives and folders, and what is unusual."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hydranet_ros.errors import FileError
from hydranet_ros.geometry import lie
from hydranet_ros.gyro.flow import FlowConfig, FlowEstimator
from hydranet_ros.gyro.grid import CanonicalView
from hydranet_ros.simulation.street import Street
from hydranet_ros.training.data import FlowDataset
from hydranet_ros.training.pairs import frame_steps, read_pairs, rendered_pairs, write_pairs
from hydranet_ros.training.streets import random_street, strange_street
from hydranet_ros.training.unreadable import KINDS


def test_steps_go_both_ways() -> None:
    assert frame_steps(3, (1, 2)) == [(0, 1), (1, 2), (0, 2), (1, 0), (2, 1), (2, 0)]
    assert frame_steps(3, (1,), both_ways=False) == [(0, 1), (1, 2)]


def test_streets_follow_from_their_number_alone() -> None:
    assert random_street(3, 5, 4) == random_street(3, 5, 4)
    assert len({random_street(3, n, 4) for n in range(50)}) == 50
    assert strange_street(3, 5, 4) != random_street(3, 5, 4)


@pytest.fixture(scope="module")
def drive():
    config = random_street(7, 0, 3)
    return config, rendered_pairs(config, gaps=(1,), unusual=1)


def test_a_drive_has_the_true_rotations(drive) -> None:
    config, pairs = drive
    T_w_c = Street(config).T_w_c
    C_2_1 = lie.so3_inverse(T_w_c[1, :3, :3]) @ T_w_c[0, :3, :3]
    np.testing.assert_allclose(lie.so3_exp(pairs.phi[0]), C_2_1, atol=1e-12)
    np.testing.assert_allclose(pairs.phi[2], -pairs.phi[0], atol=1e-12)  # backwards
    assert pairs.cells.shape == (4, 6, 112, 168)
    assert pairs.unusual.shape == (len(KINDS), 6, 112, 168)
    assert np.isfinite(pairs.cells).all()
    assert (pairs.cells[:, :, ~pairs.mask] == 0.0).all()


def test_what_is_stored_of_a_pair_is_its_flow_trust_and_texture(drive) -> None:
    config, pairs = drive
    street = Street(config)
    flow = FlowEstimator(street.camera.left, (config.height, config.width), FlowConfig("dis"))
    found = flow(street.photograph(0), street.photograph(1))
    stored = pairs.cells[0].astype(np.float32)
    np.testing.assert_allclose(stored[:2], found.flow, rtol=2e-3, atol=1e-6)
    np.testing.assert_array_equal(stored[2] > 0.0, found.trusted)
    texture = np.where(found.mask, found.texture, 0.0)
    np.testing.assert_allclose(stored[3:], texture, rtol=2e-3, atol=1e-4)
    batch = FlowDataset([pairs]).batch(np.array([0]))
    assert batch.flow.shape == (1, 2, 112, 168)
    np.testing.assert_array_equal(batch.trusted[0, 0] > 0.0, found.trusted)
    np.testing.assert_array_equal(batch.texture[0].numpy(), stored[3:])
    assert [tuple(each.shape) for each in batch.inputs(6)] == [(1, 6, 112, 168), (1, 1, 112, 168)]


def test_flow_of_a_drive_is_close_to_the_exact_one(drive) -> None:
    config, pairs = drive
    street = Street(config)
    exact = street.flow(0, 1)
    camera = street.camera.left
    rows = np.arange(pairs.mask.shape[0])[:, None]
    inside = pairs.mask & (rows > pairs.mask.shape[0] // 2 - 4)  # below the horizon
    view = CanonicalView(camera, (config.height, config.width))
    wanted = view.camera_flow_to_grid(exact.vectors).flow
    error = np.linalg.norm(pairs.cells[0, :2].astype(float) - wanted, axis=0)[inside]
    assert np.median(error) < 0.05 * np.median(np.linalg.norm(wanted, axis=0)[inside]) + 1e-3


def test_files_keep_pairs(drive, tmp_path: Path) -> None:
    _, pairs = drive
    path = tmp_path / "drive.npz"
    write_pairs(path, pairs)
    again = read_pairs(path)
    for name in ("cells", "mask", "phi", "unusual"):
        np.testing.assert_array_equal(getattr(again, name), getattr(pairs, name))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FileError, match="delete it"):
        read_pairs(path)
    with pytest.raises(FileError, match=r"drive2\.npz: cannot be read"):
        read_pairs(tmp_path / "drive2.npz")


@pytest.mark.parametrize("kind", KINDS)
def test_unusual_pairs_are_images_and_repeat(kind: str) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 256, (2, 60, 200)).astype(np.uint8)
    made = [KINDS[kind](first, second, np.random.default_rng(1)) for _ in range(2)]
    for image, again in zip(*made, strict=True):
        assert image.shape == first.shape
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, again)
    assert not all(np.array_equal(a, b) for a, b in zip(made[0], (first, second), strict=True))
