"""A drive along a simulated street: stereo images with exact poses, depth and optical flow."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.drive import Drive, GroundMap
from hydranet_ros.simulation.shading import Shader
from hydranet_ros.simulation.street_scene import build_scene
from hydranet_ros.simulation.textures import atlas
from hydranet_ros.simulation.world import LEFT, RIGHT, ExactFlow, StereoFrame, World

__all__ = ["LEFT", "RIGHT", "ExactFlow", "StereoFrame", "Street"]


class Street(World):
    """A street of a configuration. Frames can be asked for in any order.

    The world frame is the first left camera, or where that is turned in its mount, the camera
    turned back: x right, y down, z along the street.
    """

    def __init__(self, config: StreetConfig | None = None) -> None:
        self.config = config = config or StreetConfig()
        street, drive, drift = np.random.SeedSequence([config.seed, 0]).spawn(3)
        self._drive = Drive(config, np.random.default_rng(drive))
        scene = build_scene(config, self._drive, np.random.default_rng(street))
        super().__init__(config, config.stereo, scene, np.random.default_rng(drift))

    def _pose(self, time_s: ArrayLike) -> Array:
        return self._drive.pose(time_s)

    @cached_property
    def _shader(self) -> Shader:
        ground, config = GroundMap(self._drive.line), self.config
        seed = config.seed if config.texture_seed is None else config.texture_seed
        return Shader(self._scene, ground, atlas(seed), config.texture_contrast)
