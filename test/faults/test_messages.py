"""A hundred thousand mutated messages to the three nodes: each goes on, and never lies surely.

A batch is a drive that begins and ends with good messages, and is attacked in between. The number
in a note is the seed of its batch; FAULTS_SEED in the environment is the first of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from faults.cameras import CameraWorld, GyroWorld, PackedWorld, StereoWorld
from faults.cars import INTERVAL, ODOMETRY, PERIOD, ROTATION, Car, FusionWorld, Stream
from faults.mutations import mutated, mutated_stamp
from faults.tally import Report
from faults.worlds import World

# In a node numpy's warnings are lines on stderr.
pytestmark = pytest.mark.filterwarnings("default::RuntimeWarning")

START = 1_000 * 10**9
FIRST_SEED = int(os.environ.get("FAULTS_SEED", "0"))
GOOD = 10  # steps before and after an attack


class Liar:
    """Spoils messages, and counts them."""

    def __init__(self, seed: int) -> None:
        self.rng, self.told = np.random.default_rng(seed), 0

    def spoil(self, message: Any) -> Any:
        """Another stamp, or other fields."""
        self.told += 1
        return (mutated_stamp if self.rng.random() < 0.15 else mutated)(self.rng, message)


# --- attacks on the fusion -----------------------------------------------------------------------


def replaced(car: Car, liar: Liar) -> Stream:
    """One message in five is wrong."""
    for topic, message in car.drive(60):
        yield topic, liar.spoil(message) if liar.rng.random() < 0.2 else message


def between(car: Car, liar: Liar) -> Stream:
    """After each good step, two messages of somebody else on the same topics."""
    for _ in range(40):
        yield from car.step()
        yield from somebody_else(car, liar, 2)


def flood(car: Car, liar: Liar) -> Stream:
    """Nothing but wrong messages for twenty seconds."""
    for _ in range(200):
        yield from somebody_else(car, liar, 4)
        car.now += PERIOD


def somebody_else(car: Car, liar: Liar, messages: int) -> Stream:
    """Wrong messages at times between the last step and the next."""
    for fraction in np.linspace(0.05, 0.95, messages):
        stamp = car.now + round(PERIOD * fraction)
        interval, rotation = car.rotation(car.now, stamp)
        choices = {ODOMETRY: car.odometry(stamp), INTERVAL: interval, ROTATION: rotation}
        topic = str(liar.rng.choice(list(choices), p=[0.4, 0.3, 0.3]))
        yield topic, liar.spoil(choices[topic])


def attack_fusion(report: Report, messages: int) -> None:
    """Batches, each with a car of its own, until so many messages were wrong."""
    row = report.row("messages to fusion_node")
    attacks, seeds = (replaced, between, flood, flood), count(FIRST_SEED)
    while row.tried < messages and row.crashed < 10:
        with FusionWorld(row) as world:
            for seed in seeds:
                liar, attack = Liar(seed), attacks[seed % 4]
                car = Car(liar.rng, START + seed * 10**12)
                world.place(car, f"{attack.__name__}, seed {seed}")
                world.send(car.begin())
                world.send(car.drive(GOOD))
                world.send(attack(car, liar))
                world.send(car.drive(GOOD))
                alive = world.goes_on()
                note(report, world, liar)
                if not alive or row.tried >= messages:
                    break
    row.check()


def note(report: Report, world: World, liar: Liar) -> None:
    """Count what was sent, and what of it came to the node."""
    lost = min(sum((world.sent - world.received).values()), liar.told)
    world.sent.clear()
    world.received.clear()
    world.row.tried += liar.told - lost
    report.sent += liar.told
    report.received += liar.told - lost


# --- attacks on cameras --------------------------------------------------------------------------


def attack_camera(report: Report, make: Callable[..., CameraWorld], messages: int) -> None:
    """Batches of good frames with wrong messages in between."""
    row, seeds = report.row(make.kind), count(FIRST_SEED)
    while row.tried < messages and row.crashed < 10:
        with make(row) as world:
            for seed in seeds:
                liar = Liar(seed)
                world.begin(f"seed {seed}")
                world.good_frames(4)
                for _ in range(50):
                    world.attack(liar.rng, liar.spoil)
                world.good_frames(8)
                alive = world.goes_on()
                note(report, world, liar)
                if not alive or row.tried >= messages:
                    break
    row.check()


CAMERAS = pytest.mark.parametrize("make", [GyroWorld, PackedWorld, StereoWorld])


def test_some_messages_to_fusion_node(report: Report) -> None:
    attack_fusion(report, 900)


@CAMERAS
def test_some_messages_of_cameras(report: Report, make: Callable[..., CameraWorld]) -> None:
    attack_camera(report, make, 240)


@pytest.mark.faults
def test_many_messages_to_fusion_node(report: Report) -> None:
    attack_fusion(report, 60_000)


@pytest.mark.faults
@CAMERAS
def test_many_messages_of_cameras(report: Report, make: Callable[..., CameraWorld]) -> None:
    attack_camera(report, make, 20_000 if make is StereoWorld else 10_500)
