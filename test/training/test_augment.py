"""Augmentation changes flow and rotation together: exact flow stays exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hydranet_ros.geometry import lie
from hydranet_ros.gyro.epipolar import grid_points
from hydranet_ros.gyro.grid import CanonicalGrid
from hydranet_ros.training.augment import Augmentation
from hydranet_ros.training.config import NO_AUGMENTATION, AugmentConfig
from hydranet_ros.training.data import Batch

POINTS = grid_points(CanonicalGrid())
# Edges along the rays from the middle: a mirrored picture has the same.
TEXTURE = 50.0 * np.stack([POINTS[1] ** 2, -POINTS[0] * POINTS[1], POINTS[0] ** 2])


def rotated(phi: np.ndarray) -> Batch:
    """The flow of pure rotations."""
    x, y = POINTS.double().numpy()
    rays = np.stack([x, y, np.ones_like(x)]).reshape(3, -1)
    moved = lie.so3_exp(phi) @ rays
    flow = (moved[:, :2] / moved[:, 2:] - rays[:2]).reshape(len(phi), 2, *x.shape)
    target = torch.tensor(lie.quaternion_exp(phi), dtype=torch.float32)
    mask = torch.ones(len(phi), 1, *x.shape)
    texture = torch.tensor(TEXTURE, dtype=torch.float32).expand(len(phi), -1, -1, -1)
    return Batch(torch.tensor(flow, dtype=torch.float32), mask, target, mask, texture)


def only(**chances: float) -> AugmentConfig:
    values = {**vars(NO_AUGMENTATION), **chances}
    return AugmentConfig(**values)


@pytest.mark.parametrize("config", [only(mirror=1.0), only(turn=1.0), only(mirror=0.5, turn=0.5)])
def test_the_rotation_still_explains_the_flow(config: AugmentConfig) -> None:
    phi = np.random.default_rng(0).normal(0.0, 0.02, (8, 3))
    before = rotated(phi)
    after = Augmentation(POINTS, config)(before, torch.Generator().manual_seed(0))
    assert not torch.equal(after.target, before.target)
    expected = rotated(lie.quaternion_log(after.target.double().numpy()))
    torch.testing.assert_close(after.flow, expected.flow, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(after.texture, before.texture)


def test_mirrors_have_the_rotation_that_their_axis_says() -> None:
    """A mirror in x keeps rotations about x and turns those about y and z; one in y, about y."""
    phi = np.random.default_rng(0).normal(0.0, 0.02, (32, 3))
    before = rotated(phi)
    trusted = (
        torch.rand(before.mask.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    ) * 1.0
    before = before._replace(trusted=trusted)
    after = Augmentation(POINTS, only(mirror=0.5))(before, torch.Generator().manual_seed(0))
    found = lie.quaternion_log(after.target.double().numpy())
    signs = {(1, 1, 1): (), (1, -1, -1): (-1,), (-1, 1, -1): (-2,), (-1, -1, 1): (-1, -2)}
    seen = set()
    for i, (old, new) in enumerate(zip(phi, found, strict=True)):
        key = tuple(np.sign(old * new).astype(int).tolist())
        np.testing.assert_allclose(np.abs(new), np.abs(old), atol=1e-6)
        expected = trusted[i].flip(signs[key]) if signs[key] else trusted[i]
        assert torch.equal(after.trusted[i], expected)
        seen.add(key)
    assert seen == set(signs)


def test_nothing_is_changed_by_nothing() -> None:
    batch = rotated(np.zeros((2, 3)) + 0.01)
    same = Augmentation(POINTS, NO_AUGMENTATION)(batch, torch.Generator())
    for before, after in zip(batch, same, strict=True):
        assert torch.equal(before, after)


def test_what_is_cut_off_is_masked_and_zero() -> None:
    batch = rotated(np.full((16, 3), 0.01))
    cut = Augmentation(POINTS, only(crop=1.0))(batch, torch.Generator().manual_seed(0))
    assert (cut.mask.mean(dim=(1, 2, 3)) < 1.0).all()
    assert (cut.mask.mean(dim=(1, 2, 3)) > 0.1).all()
    assert (cut.flow[(cut.mask == 0.0).expand_as(cut.flow)] == 0.0).all()


def test_chances_are_checked() -> None:
    with pytest.raises(ValueError, match=r"mirror must be a number from 0 to 1, got 1\.5"):
        AugmentConfig(mirror=1.5)
