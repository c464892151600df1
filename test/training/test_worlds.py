from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hydranet_ros.simulation.building import Building
from hydranet_ros.simulation.config import PLACES, BuildingConfig, StreetConfig
from hydranet_ros.simulation.street import Street
from hydranet_ros.training.worlds import (
    NAMED_WORLDS,
    named_world,
    open_world,
    random_world,
    strange_world,
)


def test_worlds_follow_from_their_number_alone() -> None:
    assert random_world(1, 7, 5) == random_world(1, 7, 5)
    assert random_world(1, 7, 5) != random_world(1, 8, 5)
    assert random_world(1, 7, 5) != random_world(2, 7, 5)
    assert strange_world(1, 7, 5) == strange_world(1, 7, 5)
    assert strange_world(1, 7, 5) != random_world(1, 7, 5)


def test_a_third_are_streets_and_every_place_is_there() -> None:
    for draw in (random_world, strange_world):
        worlds = [draw(3, number, 10) for number in range(300)]
        buildings = [each for each in worlds if isinstance(each, BuildingConfig)]
        assert 0.25 < 1.0 - len(buildings) / len(worlds) < 0.42
        assert set(Counter(each.place for each in buildings)) == set(PLACES)


def test_cameras_are_of_all_kinds_and_small_enough() -> None:
    worlds = [random_world(4, number, 10) for number in range(400)]
    fields = []
    for each in worlds:
        camera = each.stereo.left
        assert each.width * each.height <= 305_000
        if isinstance(each, BuildingConfig):
            assert 289.0 < camera.fx < 421.0
            fields.append(np.degrees(2.0 * np.arctan(0.5 * each.width / camera.fx)))
            assert 4.9 < each.rate_hz < 60.1
            assert each.shutter_s < 1.0 / each.rate_hz
    assert min(fields) < 45.0
    assert max(fields) > 115.0
    assert any(abs(each.mount_roll_deg) > 80.0 for each in worlds)
    assert any(each.mount_pitch_deg < -35.0 for each in worlds)


def test_either_kind_opens_and_gives_images_that_can_be_seen() -> None:
    seen = Counter[str]()
    for number in range(12):
        config = random_world(5, number, 3)
        world = open_world(config)
        assert isinstance(world, Street if isinstance(config, StreetConfig) else Building)
        seen[type(world).__name__] += 1
        image = world.photograph(1)
        assert image.shape == (config.height, config.width)
        assert 10.0 < image.mean() < 245.0
        assert np.mean(image == 255) < 0.6
    assert min(seen["Street"], seen["Building"]) > 0


def test_named_worlds_last_half_a_minute_and_others_are_refused() -> None:
    for name, config in NAMED_WORLDS.items():
        assert named_world(name) is config
        assert config.duration_s == pytest.approx(30.0, abs=0.2)
        assert open_world(config).photograph(10).std() > 10.0
    with pytest.raises(ValueError, match=r"moon.*office"):
        named_world("moon")
