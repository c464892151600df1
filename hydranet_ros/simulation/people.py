"""People that walk to and fro: a trunk with a head and arms, and two legs that swing."""

from __future__ import annotations

import numpy as np

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.drive import rotation_of
from hydranet_ros.simulation.furniture import SIDES, Kit
from hydranet_ros.simulation.motions import Motion
from hydranet_ros.simulation.routes import Route
from hydranet_ros.simulation.scene import BodyPose
from hydranet_ros.simulation.street_scene import car

_CLEAR_M = 0.75  # between a camera and somebody's axis
_TRIES = 12


class Walk:
    """To and fro between two points of the floor, slowing down at either."""

    def __init__(self, start: Array, stop: Array, speed_m_s: float, phase: float) -> None:
        self._start, self._way = start, stop - start
        self._length = float(np.linalg.norm(self._way))
        self._rate = 2.0 * speed_m_s / max(self._length, 0.1)
        self._phase = phase
        self._heading = float(np.arctan2(self._way[0], self._way[2]))

    def place(self, time_s: float) -> tuple[Array, float, float]:
        """Where on the floor, which way, and how far it has walked."""
        angle = self._rate * time_s + self._phase
        share = 0.5 - 0.5 * np.cos(angle)
        back = np.sin(angle) < 0.0
        heading = self._heading + (np.pi if back else 0.0)
        return self._start + share * self._way, heading, float(share * self._length)

    def trunk(self, time_s: float) -> Array:
        """Pose of what does not swing."""
        at, heading, _ = self.place(time_s)
        return lie.se3_from(rotation_of(np.asarray(heading)), at)

    def leg(self, time_s: float, hip_m: float, side: float) -> Array:
        """Pose of a leg: swung about the hip."""
        at, heading, walked = self.place(time_s)
        swing = 0.45 * np.sin(2.0 * np.pi * walked / 1.4) * side
        turn = rotation_of(np.asarray(heading))
        hip = at + turn @ np.array([0.1 * side, -hip_m, 0.0])
        rotation = turn @ rotation_of(np.asarray(0.0), swing)
        return lie.se3_from(rotation, hip - rotation @ np.array([0.0, -hip_m, 0.0]))


def find_walks(
    count: int,
    route: Route,
    motion: Motion,
    duration_s: float,
    speeds: tuple[float, float],
    rng: np.random.Generator,
) -> list[Walk]:
    """Walks along the route that never meet the camera: fewer than asked for where it is tight."""
    times = np.linspace(-0.1, duration_s + 0.1, max(int(10.0 * duration_s), 8))
    camera = motion.pose(times)[:, [0, 2], 3]
    walks: list[Walk] = []
    for _ in range(count * _TRIES):
        if len(walks) == count:
            break
        k = int(rng.integers(len(route.points) - 1))
        ends = route.points[[k, k + 1]] + [[0.0, 0.0, 0.0]]
        aside = rng.uniform(-1.0, 1.0, (2, 2)) * route.margin_m
        ends[:, [0, 2]] += aside
        if np.linalg.norm(ends[1] - ends[0]) < 0.5 or abs(ends[1, 1] - ends[0, 1]) > 1e-6:
            continue
        walk = Walk(ends[0], ends[1], rng.uniform(*speeds), rng.uniform(0.0, 2.0 * np.pi))
        there = np.array([walk.place(float(t))[0][[0, 2]] for t in times])
        if np.linalg.norm(there - camera, axis=-1).min() > _CLEAR_M * speeds[1]:
            walks.append(walk)
    return walks


def add_person(kit: Kit, motions: list[BodyPose], walk: Walk) -> None:
    """Three bodies: the trunk and the legs."""
    rng = kit.rng
    tall = float(rng.uniform(1.55, 1.9))
    hip, shoulder = 0.5 * tall, 0.82 * tall
    shirt, trousers = kit.skin("cloth", "plain", "carpet"), kit.skin("cloth", "dark", "carpet")
    skin = kit.skin("skin")
    body = len(motions)
    motions.append(walk.trunk)
    parts = (
        (0.0, hip, (0.4, shoulder - hip, 0.24), shirt),
        (0.0, shoulder + 0.05, (0.17, 0.15 * tall - 0.05, 0.2), skin),
        (-0.25, hip - 0.05, (0.09, shoulder - hip, 0.12), shirt),
        (0.25, hip - 0.05, (0.09, shoulder - hip, 0.12), shirt),
    )
    for right, up, size, look in parts:
        foot = np.array([right, -up, 0.0])
        skins = dict.fromkeys((*SIDES, "top"), look)
        kit.builder.box(foot, 0.0, np.array(size), skins, body)
    for side in (-1.0, 1.0):
        body = len(motions)
        motions.append(_leg_motion(walk, hip, side))
        kit.builder.box(
            np.zeros(3), 0.0, np.array([0.15, hip, 0.17]), dict.fromkeys(SIDES, trousers), body
        )


def _leg_motion(walk: Walk, hip_m: float, side: float) -> BodyPose:
    return lambda time_s: walk.leg(time_s, hip_m, side)


def add_vehicle(kit: Kit, motions: list[BodyPose], walk: Walk) -> None:
    """A car, or a truck of a hall."""
    body = len(motions)
    motions.append(walk.trunk)
    if kit.rng.random() < 0.5:
        car(kit.builder, np.zeros(3), 0.0, kit.rng, body)
        return
    skin, load = kit.whole("machine"), kit.whole("carton")
    for ahead, size, look in ((-0.6, (1.1, 1.9, 1.6), skin), (0.7, (1.0, 0.9, 1.0), load)):
        skins = dict.fromkeys((*SIDES, "top"), look)
        kit.builder.box(np.array([0.0, -0.1, ahead]), 0.0, np.array(size), skins, body)
