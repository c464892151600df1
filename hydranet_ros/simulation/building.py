"""A way through a simulated building: stereo images with exact poses, depth and optical flow."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import BuildingConfig, Place
from hydranet_ros.simulation.drive import rotation_of
from hydranet_ros.simulation.furniture import Free, Kit
from hydranet_ros.simulation.halls import plan_car_park, plan_hall, plan_stairs
from hydranet_ros.simulation.indoor_textures import INDOOR_TEXTURES, indoor_atlas
from hydranet_ros.simulation.motions import Motion, make_motion
from hydranet_ros.simulation.people import add_person, add_vehicle, find_walks
from hydranet_ros.simulation.places import Plan, plan_desk, plan_office, plan_room
from hydranet_ros.simulation.plane_shading import PlaneShader
from hydranet_ros.simulation.scene import BodyPose, Builder, StreetScene
from hydranet_ros.simulation.world import World

_PLANS: dict[Place, Callable[[BuildingConfig, np.random.Generator], Plan]] = {
    "room": plan_room,
    "office": plan_office,
    "desk": plan_desk,
    "hall": plan_hall,
    "stairs": plan_stairs,
    "car_park": plan_car_park,
}
_NEAR_M = 0.05
_CLEAR_M = 0.28  # between the cameras and what stands around
_FAR_BELOW_M = 1e6  # where the endless ground of streets is
_TAPS_PER_PX, _MOST_TAPS = 0.7, 31


class Building(World):
    """A building of a configuration. Frames can be asked for in any order.

    The world frame is that of a street: where the first left camera is, y down, and z where what
    carries it looks first.
    """

    def __init__(self, config: BuildingConfig | None = None) -> None:
        self.config = config = config or BuildingConfig()
        place, way, things, drift = np.random.SeedSequence([config.seed, 6]).spawn(4)
        plan = _PLANS[config.place](config, np.random.default_rng(place))
        self._carrier = make_motion(config, plan.route, np.random.default_rng(way))
        mount = config.mount_yaw_deg, config.mount_pitch_deg, config.mount_roll_deg
        self._mount = rotation_of(*np.radians(mount))
        scene = _build(config, plan, self._carrier, np.random.default_rng(things))
        super().__init__(config, config.stereo, scene, np.random.default_rng(drift))

    def _pose(self, time_s: ArrayLike) -> Array:
        pose = self._carrier.pose(time_s)
        pose[..., :3, :3] = pose[..., :3, :3] @ self._mount
        return pose

    def _reported(self, pose: Array) -> Array:
        first = self._carrier.pose(0.0)
        heading = np.arctan2(first[0, 2], first[2, 2])
        T_w_b = lie.se3_inverse(lie.se3_from(rotation_of(heading), first[:3, 3]))
        return np.asarray(T_w_b @ pose)

    def _blur_taps(self, vectors: Array) -> int:
        longest = 2.0 * float(np.percentile(np.linalg.norm(vectors, axis=-1), 95.0))
        return int(np.clip(np.ceil(_TAPS_PER_PX * longest), 3, _MOST_TAPS)) | 1

    @cached_property
    def _shader(self) -> PlaneShader:
        config = self.config
        seed = config.seed if config.texture_seed is None else config.texture_seed
        return PlaneShader(self._scene, indoor_atlas(seed), config.texture_contrast)


def _build(
    config: BuildingConfig, plan: Plan, motion: Motion, rng: np.random.Generator
) -> StreetScene:
    """The scene around a motion: nothing is put where cameras or people go."""
    vehicles = config.place in ("hall", "car_park")
    speeds = (1.0, 3.0) if vehicles else (0.4, 1.3)
    duration = config.duration_s
    walks = find_walks(config.people, plan.route, motion, duration, speeds, rng)
    builder = Builder(_FAR_BELOW_M, INDOOR_TEXTURES)
    kit = Kit(builder, Free(_taken(config, motion), _CLEAR_M), rng, config.blank)
    motions: list[BodyPose] = [lambda time_s: np.eye(4)]
    for walk in walks:
        if vehicles and rng.random() < 0.5:
            add_vehicle(kit, motions, walk)
        else:
            add_person(kit, motions, walk)
    plan.build(kit)
    return StreetScene(builder.facets, motions, _NEAR_M)


def _taken(config: BuildingConfig, motion: Motion) -> Array:
    """(n, 3) places of both cameras, close enough together that nothing fits between them."""
    times = np.arange(-0.2, config.duration_s + 0.2, 0.05)
    left = motion.pose(times)
    mount = np.radians([config.mount_yaw_deg, config.mount_pitch_deg, config.mount_roll_deg])
    right = left[:, :3, :3] @ rotation_of(*mount)[:, 0] * config.stereo.baseline_m
    return np.concatenate([left[:, :3, 3] + share * right for share in (0.0, 0.5, 1.0)])
