"""What all simulated worlds have in common: stereo images with exact poses, depth and flow.

A world has a scene of flat facets, a pose of the left camera at any time, and a shader. All that
is seen follows from these three, so that images, depth and flow agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.simulation.config import BuildingConfig, StreetConfig
from hydranet_ros.simulation.raster import CENTRE, View, view, visible
from hydranet_ros.simulation.scene import SKY, StreetScene
from hydranet_ros.simulation.sensor import (
    FloatImage,
    exposure_steps,
    jpeg,
    row_delays,
    vignette,
)

LEFT, RIGHT = 0, 1
Photography = StreetConfig | BuildingConfig  # what these share is about images
# A point is hidden where something is nearer by more than this share of the depth, and by more
# than this inverse depth (per metre), which is a few hundredths of a pixel of disparity.
_HIDDEN_BY, _HIDDEN_BY_INVERSE = 0.01, 2e-4
_BLUR_TAPS = 9


@dataclass(frozen=True, eq=False)
class StereoFrame:
    """One rectified stereo pair, grey uint8 (height, width), and the truth about it."""

    stamp_ns: int
    left: NDArray[np.uint8]
    right: NDArray[np.uint8]
    T_w_c: Array  # left camera to world


@dataclass(frozen=True, eq=False)
class ExactFlow:
    """Where the points seen in the pixels of one view are in another view.

    Pixel p of the first view is at p + vectors[p] in the second, whether or not it can be seen
    there; 0 where the point is behind the second camera.
    """

    vectors: NDArray[np.float32]  # (height, width, 2)
    in_view: NDArray[np.bool_]  # inside the second image
    visible: NDArray[np.bool_]  # inside it and not hidden by something nearer


class ViewShader(Protocol):
    """What turns a view into grey levels."""

    def image(self, seen: View, size: tuple[int, int], focal: float) -> FloatImage:
        """(height, width) grey levels 0..255 and beyond, before lens and sensor."""


class World(ABC):
    """A world of a configuration. Frames can be asked for in any order."""

    def __init__(
        self,
        photography: Photography,
        camera: StereoCamera,
        scene: StreetScene,
        drift: np.random.Generator,
    ) -> None:
        self._photography = config = photography
        self.camera: StereoCamera = camera
        self._scene = scene
        self._size = config.width, config.height
        self._times = np.arange(config.frames) / config.rate_hz
        self.stamps_ns: list[int] = [round(k * 1e9 / config.rate_hz) for k in range(config.frames)]
        self._gains = _gains(config, drift, self._times)
        self.T_w_c: Array = self._reported(self._pose(self._times))
        self.T_w_c.setflags(write=False)

    @abstractmethod
    def _pose(self, time_s: ArrayLike) -> Array:
        """Left camera to the frame of the scene, at (...) times: (..., 4, 4)."""

    @property
    @abstractmethod
    def _shader(self) -> ViewShader:
        """Made when the first image is asked for: depth and flow do without textures."""

    def _reported(self, pose: Array) -> Array:
        """Poses in the world frame that users see, from those in the frame of the scene."""
        return pose

    def _blur_taps(self, vectors: Array) -> int:
        """How many images are averaged over the exposure, by the motion in half of it."""
        return _BLUR_TAPS

    def __len__(self) -> int:
        return self._photography.frames

    def __iter__(self) -> Iterator[StereoFrame]:
        return (self.render(index) for index in range(len(self)))

    def render(self, index: int) -> StereoFrame:
        """The stereo pair of a frame."""
        self._check(index)
        left, right = (self.photograph(index, side) for side in (LEFT, RIGHT))
        return StereoFrame(self.stamps_ns[index], left, right, self.T_w_c[index])

    def depth(self, index: int) -> NDArray[np.float32]:
        """Metres along the optical axis at the centre of every left pixel; infinite in the sky."""
        _, inverse = self._geometry(self._view(index, LEFT))
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / inverse, dtype=np.float32)

    def flow(self, index: int, other: int) -> ExactFlow:
        """Exact optical flow from left image `index` to left image `other`, movers included."""
        return self._flow(self._view(index, LEFT), self._view(other, LEFT))

    def disparity(self, index: int) -> ExactFlow:
        """Exact flow from left to right image: vectors are (-disparity, 0)."""
        return self._flow(self._view(index, LEFT), self._view(index, RIGHT))

    def moving(self, index: int) -> NDArray[np.bool_]:
        """Pixels of the left image that show something which moves in the world."""
        ids, _ = self._geometry(self._view(index, LEFT))
        return np.asarray(self._scene.body[ids] != 0)

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(
                f"frame {index} of a {type(self).__name__.lower()} with {len(self)} frames"
            )

    def _view(self, index: int, side: int, delay_s: float = 0.0) -> View:
        self._check(index)
        time_s = index / self._photography.rate_hz + delay_s
        T_l_c = np.eye(4)
        T_l_c[0, 3] = self.camera.baseline_m * side
        T_w_c = self._pose(time_s) @ T_l_c
        return view(self._scene, self.camera.left, self._size, T_w_c, self._scene.poses(time_s))

    def _geometry(self, seen: View) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        """(height, width) facet and inverse depth at pixel centres."""
        ids, inverse = visible(seen, self._size, CENTRE)
        return ids[0], inverse[0]

    def _flow(self, first: View, second: View) -> ExactFlow:
        ids, _ = self._geometry(first)
        vectors, inverse_depth = self._motion(first, second, ids)
        target = vectors + _grid(self._size)
        width, height = self._size
        in_view = (inverse_depth >= 0.0) & (target >= 0.0).all(axis=-1)
        in_view &= (target[..., 0] <= width - 1) & (target[..., 1] <= height - 1)
        _, there = self._geometry(second)
        # Inverse depth is affine on a plane, so interpolating it is exact away from outlines.
        found = _warp(there, np.where(in_view[..., None], target, 0.0))
        hidden = found > inverse_depth * (1.0 + _HIDDEN_BY) + _HIDDEN_BY_INVERSE
        return ExactFlow(vectors.astype(np.float32), in_view, in_view & ~hidden)

    def _motion(self, first: View, second: View, ids: NDArray[np.int16]) -> tuple[Array, Array]:
        """(h, w, 2) image motion, (h, w) inverse depth in the second view (-1 behind it)."""
        c = self.camera.left
        pixels = _grid(self._size)
        rays = np.dstack([c.normalise(pixels), np.ones(ids.shape)])
        plane = first.homography[:, 2]
        plane = np.where(np.arange(len(plane))[:, None] == SKY, 0.0, plane)[ids]
        inverse = plane[..., 0] * pixels[..., 0] + plane[..., 1] * pixels[..., 1] + plane[..., 2]
        T_2_1 = second.T_c_b @ lie.se3_inverse(first.T_c_b)  # per body
        moved = rays @ T_2_1[0, :3, :3].T + inverse[..., None] * T_2_1[0, :3, 3]
        body = self._scene.body[ids]
        for k in np.flatnonzero(np.bincount(body.reshape(-1))[1:]) + 1:
            on = body == k
            moved[on] = rays[on] @ T_2_1[k, :3, :3].T + inverse[on][:, None] * T_2_1[k, :3, 3]
        ahead = moved[..., 2] > 1e-3
        safe = np.where(ahead[..., None], moved, 1.0)
        vectors = np.where(ahead[..., None], c.project(safe) - pixels, 0.0)
        return vectors, np.where(ahead, inverse / safe[..., 2], -1.0)

    def photograph(self, index: int, side: int = LEFT) -> NDArray[np.uint8]:
        """The image of one camera: shade, then lens, shutter, exposure and sensor."""
        self._check(index)
        config, sensor = self._photography, self._photography.sensor
        seen = self._view(index, side)
        image = self._shader.image(seen, self._size, self.camera.left.fx)
        if config.blur_sigma_px > 0.0:
            blurred = cv2.GaussianBlur(image, (0, 0), config.blur_sigma_px)
            image = np.asarray(blurred, dtype=np.float32)
        if config.shutter_s > 0.0 or sensor.readout_s > 0.0:
            image = self._smear(image, index, side)
        if sensor.vignetting > 0.0:
            image = image * vignette(self.camera.left, self._size, sensor.vignetting)
        gain = float(self._gains[index]) * (config.right_gain if side == RIGHT else 1.0)
        image = np.clip(image * (gain / 255.0), 0.0, 1.0)
        image = 255.0 * (image if config.gamma == 1.0 else image**config.gamma)
        if config.noise_sigma > 0.0:
            rng = np.random.default_rng([config.seed, 2, index, side])
            image = image + config.noise_sigma * rng.standard_normal(image.shape, np.float32)
        grey = np.asarray(np.clip(np.rint(image), 0, 255), dtype=np.uint8)
        return grey if sensor.jpeg_quality == 0 else jpeg(grey, sensor.jpeg_quality)

    def _smear(self, image: FloatImage, index: int, side: int) -> FloatImage:
        """Mean along the image motion during the exposure, half of it before the stamp.

        With a rolling shutter the exposure of a row is early or late by the delay of the row: its
        pixels show what was there before the motion of that time.
        """
        config = self._photography
        readout_s = config.sensor.readout_s
        half = 0.5 * (config.shutter_s or readout_s)
        now, later = self._view(index, side), self._view(index, side, half)
        ids, _ = self._geometry(now)
        vectors, _ = self._motion(now, later, ids)
        at = _grid(self._size)
        if readout_s > 0.0:
            at = at - row_delays(config.height, readout_s)[:, None, None] / half * vectors
        if config.shutter_s == 0.0:
            return _warp(image, at)
        total = np.zeros_like(image)
        taps = self._blur_taps(vectors)
        for share in np.linspace(-1.0, 1.0, taps):
            total += _warp(image, at + share * vectors)
        return total / np.float32(taps)


def _grid(size: tuple[int, int]) -> Array:
    """(height, width, 2) pixel coordinates u, v."""
    u, v = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    return np.stack([u, v], axis=-1).astype(np.float64)


def _warp(image: NDArray[np.float32], at: Array) -> NDArray[np.float32]:
    """Bilinear look-up at (height, width, 2) pixels u, v; the edge goes on outside."""
    u, v = np.moveaxis(at.astype(np.float32), -1, 0)
    out = cv2.remap(image, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(out, dtype=np.float32)


def _gains(config: Photography, rng: np.random.Generator, times: Array) -> Array:
    """The gain of every frame: two slow sines about `gain`."""
    phase = rng.uniform(0.0, 2.0 * np.pi, 2)
    drift = 0.6 * np.sin(0.5 * times + phase[0]) + 0.4 * np.sin(1.7 * times + phase[1])
    steps = exposure_steps(config.sensor, config.seed, times)
    return np.asarray(config.gain * (1.0 + config.gain_drift * drift) * steps)
