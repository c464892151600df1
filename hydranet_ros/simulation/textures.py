"""Procedural textures: grey levels 0..255 that wrap around, with detail at every scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from hydranet_ros.simulation.atlas import Atlas, FloatImage

GROUND_LENGTH_M, GROUND_WIDTH_M = 48.0, 24.0  # one tile of the ground, along and across
ROAD_CENTRE_M = -1.7  # d of the line between the lanes: we drive on the right
LANE_M, KERB_M = 3.4, 5.6  # width of a lane; distance of either kerb from the road's centre
FACADE_TILE_M = 12.0
SKY_BOTTOM_RAD, SKY_TOP_RAD = np.radians(-7.5), np.radians(37.5)


def noise(rng: np.random.Generator, width: int, height: int, power: float = 1.0) -> FloatImage:
    """Unit-variance noise that wraps around, of amplitude 1/frequency^power: equal in octaves."""
    fy, fx = np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width)[None] * width
    radius = np.hypot(fx / width, fy / height) * max(width, height)  # cycles per longer side
    amplitude = np.where(radius < 1.0, 0.0, 1.0 / np.maximum(radius, 1.0) ** power)
    phase = rng.standard_normal((*amplitude.shape, 2)).view(np.complex128)[..., 0]
    field = np.fft.irfft2(amplitude * phase, s=(height, width))
    return np.asarray(field / field.std(), dtype=np.float32)


def fill(image: FloatImage, x: float, y: float, width: float, height: float, grey: float) -> None:
    """Fill a rectangle in texels; what is outside the image is left out."""
    image[max(round(y), 0) : max(round(y + height), 0), max(round(x), 0) : round(x + width)] = grey


def _ground(rng: np.random.Generator) -> FloatImage:
    """One tile of the ground: u along the street, v across it, centred on the road's centre."""
    width, height = 2048, 1024
    per_m = width / GROUND_LENGTH_M
    middle = height / 2
    image = np.full((height, width), 92.0, dtype=np.float32)
    _pavement(rng, image, per_m)
    for side in (-1.0, 1.0):
        kerb = middle + side * KERB_M * per_m
        fill(image, 0, kerb - 0.12 * per_m, width, 0.24 * per_m, 150.0)
        fill(image, 0, kerb - side * 0.35 * per_m - 0.1 * per_m, width, 0.2 * per_m, 62.0)
        fill(image, 0, middle + side * LANE_M * per_m - 0.07 * per_m, width, 0.14 * per_m, 190.0)
    for dash in np.arange(0.0, GROUND_LENGTH_M, 6.0):
        fill(image, dash * per_m, middle - 0.07 * per_m, 3.0 * per_m, 0.14 * per_m, 205.0)
    _repairs(rng, image, per_m)
    texture = noise(rng, width, height, 0.9)
    return np.asarray(image * (1.0 + 0.16 * texture) + 4.0 * noise(rng, width, height, 0.5))


def _pavement(rng: np.random.Generator, image: FloatImage, per_m: float) -> None:
    """Slabs of slightly different greys with dark joints, on both sides of the road."""
    slab = per_m * 0.75
    for y in np.arange(0, image.shape[0], slab):
        if abs(y + slab / 2 - image.shape[0] / 2) < (KERB_M - 0.3) * per_m:
            continue
        for x in np.arange(0, image.shape[1], slab):
            fill(image, x, y, slab, slab, 95.0)
            fill(image, x + 1, y + 1, slab - 1, slab - 1, rng.normal(128.0, 10.0))


def _repairs(rng: np.random.Generator, image: FloatImage, per_m: float) -> None:
    """Patches, manholes and cracks on the road."""
    height, width = image.shape
    for _ in range(14):
        x, y = rng.uniform(0, width), height / 2 + rng.uniform(-5.0, 5.0) * per_m
        size = rng.uniform(0.3, 2.5, 2) * per_m
        region = np.s_[int(y) : int(y + size[1]), int(x) : int(x + size[0])]
        image[region] *= rng.choice([0.72, 0.85, 1.15])
    for _ in range(6):
        x, y = rng.uniform(20, width - 20), height / 2 + rng.uniform(-5.0, 5.0) * per_m
        cv2.circle(image, (int(x), int(y)), int(0.35 * per_m), 45.0, -1, cv2.LINE_AA)
        cv2.circle(image, (int(x), int(y)), int(0.27 * per_m), 78.0, -1, cv2.LINE_AA)
    for _ in range(26):
        start = np.array([rng.uniform(0, width), height / 2 + rng.uniform(-5.3, 5.3) * per_m])
        steps = rng.normal(0.0, 0.35 * per_m, (9, 2)) + rng.normal(0.0, 0.25 * per_m, 2)
        points = np.round(start + np.cumsum(steps, axis=0)).astype(np.int32)
        cv2.polylines(image, [points], False, 50.0, 2, cv2.LINE_AA)


def _facade(rng: np.random.Generator) -> FloatImage:
    """12 m x 12 m of wall: v = 0 is 12 m above the pavement."""
    size = 512
    per_m = size / FACADE_TILE_M
    wall = rng.uniform(95.0, 185.0)
    image = wall * (1.0 + 0.12 * noise(rng, size, size, 1.0))
    if rng.random() < 0.5:
        _bricks(rng, image, per_m)
    columns = int(rng.integers(3, 6))
    for floor in range(4):
        base = (12.0 - 3.0 * floor) * per_m
        fill(image, 0, base - 0.25 * per_m, size, 0.18 * per_m, wall * rng.uniform(0.6, 1.3))
        _openings(rng, image, base, columns, floor == 0)
    for _ in range(2):
        x = rng.uniform(0, size)
        fill(image, x, 0, 0.12 * per_m, size, wall * 0.5)
    return np.asarray(image + 4.0 * noise(rng, size, size, 0.5), dtype=np.float32)


def _bricks(rng: np.random.Generator, image: FloatImage, per_m: float) -> None:
    """Courses 0.25 m high with staggered joints."""
    course = per_m * 0.25
    for k, y in enumerate(np.arange(0.0, image.shape[0], course)):
        for x in np.arange(-(k % 2) * course, image.shape[1], 2.0 * course):
            region = np.s_[int(y) : int(y + course), max(int(x), 0) : max(int(x + 2 * course), 0)]
            image[region] *= rng.uniform(0.86, 1.12)


def _openings(
    rng: np.random.Generator, image: FloatImage, base: float, columns: int, ground_floor: bool
) -> None:
    """A row of windows, or of doors and shop windows, above the line `base`."""
    per_m, pitch = image.shape[1] / FACADE_TILE_M, image.shape[1] / columns
    for column in range(columns):
        wide = rng.uniform(1.0, 1.5) if not ground_floor else rng.uniform(1.0, 2.0)
        tall, sill = (2.2, 0.05) if ground_floor and rng.random() < 0.5 else (1.6, 0.85)
        x = (column + 0.5) * pitch - 0.5 * wide * per_m
        y = base - (sill + tall) * per_m
        frame = rng.uniform(120.0, 235.0)
        fill(image, x - 4, y - 4, wide * per_m + 8, tall * per_m + 8, frame)
        fill(image, x, y, wide * per_m, tall * per_m, rng.uniform(25.0, 70.0))
        blind = rng.uniform(0.0, 0.6) * tall * per_m
        fill(image, x, y, wide * per_m, blind, rng.uniform(60.0, 190.0))
        fill(image, x + 0.5 * wide * per_m - 1, y, 3, tall * per_m, frame)


def _car_side(rng: np.random.Generator) -> FloatImage:
    image = 150.0 * (1.0 + 0.06 * noise(rng, 256, 64))
    for x in (85, 150):
        fill(image, x, 4, 2, 50, 70.0)
    fill(image, 0, 26, 256, 3, 105.0)
    fill(image, 0, 56, 256, 8, 55.0)
    for x in (48, 208):
        cv2.circle(image, (x, 48), 19, 30.0, -1, cv2.LINE_AA)
        cv2.circle(image, (x, 48), 10, 140.0, -1, cv2.LINE_AA)
        cv2.circle(image, (x, 48), 4, 40.0, -1, cv2.LINE_AA)
    return np.asarray(image, dtype=np.float32)


def _car_end(rng: np.random.Generator) -> FloatImage:
    image = 150.0 * (1.0 + 0.06 * noise(rng, 128, 64))
    for x in (6, 98):
        fill(image, x, 10, 24, 14, 235.0)
        fill(image, x + 6, 14, 10, 6, 120.0)
    fill(image, 36, 10, 56, 12, 50.0)
    fill(image, 46, 34, 36, 10, 220.0)
    fill(image, 0, 50, 128, 14, 45.0)
    return np.asarray(image, dtype=np.float32)


def _car_glass(rng: np.random.Generator) -> FloatImage:
    image = 60.0 * (1.0 + 0.25 * noise(rng, 128, 32, 1.2))
    for x in (0, 60, 122):
        fill(image, x, 0, 6, 32, 140.0)
    fill(image, 0, 0, 128, 3, 140.0)
    return np.asarray(image, dtype=np.float32)


def _leaves(rng: np.random.Generator) -> FloatImage:
    return 78.0 * (1.0 + 0.35 * noise(rng, 256, 256, 0.75))


def _bark(rng: np.random.Generator) -> FloatImage:
    streaks = cv2.resize(noise(rng, 64, 64, 0.7), (64, 256), interpolation=cv2.INTER_CUBIC)
    return np.asarray(75.0 * (1.0 + 0.22 * streaks), dtype=np.float32)


def _shade(rng: np.random.Generator) -> FloatImage:
    return 40.0 * (1.0 + 0.12 * noise(rng, 64, 64))


def _sky(rng: np.random.Generator) -> FloatImage:
    """Azimuth by elevation: weak clouds, and far hills, houses and trees on the horizon."""
    width, height = 4096, 512
    horizon = height * SKY_TOP_RAD / (SKY_TOP_RAD - SKY_BOTTOM_RAD)
    image = np.linspace(192.0, 226.0, height, dtype=np.float32)[:, None] + 7.0 * noise(
        rng, width, height, 1.3
    )
    texture = noise(rng, width, height, 0.8)
    columns = np.arange(width)
    for rise, grey, rough in ((30.0, 150.0, 1.6), (14.0, 112.0, 1.1)):
        ridge = rise * (1.0 + 0.35 * noise(rng, width, 2, rough)[0])
        rows = np.arange(height, dtype=np.float32)[:, None]
        cover = np.clip(rows - (horizon - ridge[columns]) + 0.5, 0.0, 1.0)
        image = image * (1.0 - cover) + cover * grey * (1.0 + 0.10 * texture)
    x = 0.0
    while x < width - 60:
        wide, tall = rng.uniform(8, 45), rng.uniform(10, 60)
        grey = rng.uniform(95.0, 175.0)
        region = np.s_[int(horizon - tall) :, int(x) : int(x + wide)]
        image[region] = grey * (1.0 + 0.08 * texture[region])
        for y in np.arange(horizon - tall + 3, horizon, 6.0):
            image[int(y) : int(y) + 3, int(x) + 2 : int(x + wide) - 2 : 5] *= 0.75
        x += wide + rng.exponential(40.0)
    return np.asarray(image, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a texture is painted."""

    paint: Callable[[np.random.Generator], FloatImage]
    levels: int  # how many times a texture may be halved in each direction


FACADES = 6
RECIPES = {
    "ground": Recipe(_ground, 9),
    "sky": Recipe(_sky, 2),
    **{f"facade{k}": Recipe(_facade, 8) for k in range(FACADES)},
    "car side": Recipe(_car_side, 6),
    "car end": Recipe(_car_end, 6),
    "car glass": Recipe(_car_glass, 5),
    "leaves": Recipe(_leaves, 8),
    "bark": Recipe(_bark, 6),
    "shade": Recipe(_shade, 6),
}
TEXTURES = {name: index for index, name in enumerate(RECIPES)}


@lru_cache(maxsize=2)
def atlas(seed: int) -> Atlas:
    """The textures of a seed; the last two are kept, since they take the longest to make."""
    children = np.random.SeedSequence([seed, 1]).spawn(len(RECIPES))
    recipes = list(RECIPES.values())
    textures = [
        recipe.paint(np.random.default_rng(child))
        for recipe, child in zip(recipes, children, strict=True)
    ]
    return Atlas(textures, [recipe.levels for recipe in recipes])
