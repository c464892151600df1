"""What a cheap camera does to images besides blur, gain and noise; off unless asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.camera import Camera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import Configuration, setting

FloatImage = NDArray[np.float32]

_STEPS_PER_S = 0.7
_STEP_SETTLES_S = 0.12


@dataclass(frozen=True)
class SensorConfig(Configuration):
    """Nuisances of lens, shutter, exposure control and compression."""

    vignetting: float = setting(
        0.0, "share of the cos^4 fall-off towards the corners that is there", 0, 1
    )
    readout_s: float = setting(
        0.0, "time from the first to the last row of a rolling shutter, centred on the stamp", 0, 1
    )
    exposure_step: float = setting(
        0.0, "auto-exposure: the largest step of the gain, as a share of it", 0, 0.8
    )
    jpeg_quality: int = setting(0, "quality of JPEG compression; 0 has none", 0, 100)


@lru_cache(maxsize=4)
def vignette(camera: Camera, size: tuple[int, int], share: float) -> FloatImage:
    """(height, width) factors: (1 - share) + share cos^4 of the angle to the optical axis."""
    u, v = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    x, y = np.moveaxis(camera.normalise(np.stack([u, v], axis=-1)), -1, 0)
    cos4 = 1.0 / (1.0 + x**2 + y**2) ** 2
    return np.asarray(1.0 - share + share * cos4, dtype=np.float32)


def row_delays(height: int, readout_s: float) -> Array:
    """(height,) seconds after the stamp at which the rows are read."""
    return np.asarray(((np.arange(height) + 0.5) / height - 0.5) * readout_s)


def exposure_steps(config: SensorConfig, seed: int, times: Array) -> Array:
    """Factors on the gain of every frame: steps at random times that settle within frames."""
    factor = np.ones_like(times)
    if config.exposure_step == 0.0 or len(times) == 0:
        return factor
    rng = np.random.default_rng([seed, 4])
    count = 1 + rng.poisson(_STEPS_PER_S * float(times[-1]))
    level = 0.0
    for at in np.sort(rng.uniform(times[0], times[-1], count)):
        # Steps of the logarithm back towards its middle, so that the gain stays within bounds.
        step = rng.uniform(-1.0, 1.0) * np.log1p(config.exposure_step) - level
        level += step
        rise = np.clip((times - at) / _STEP_SETTLES_S, 0.0, 1.0)
        factor = factor * np.exp(step * rise)
    return np.asarray(factor)


def jpeg(image: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    """What is left of a grey image after compression."""
    done, code = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError(f"an image of {image.shape} cannot be compressed")
    return np.asarray(cv2.imdecode(code, cv2.IMREAD_GRAYSCALE), dtype=np.uint8)
