"""Procedural textures of rooms, halls and what stands in them; grey levels as in `textures`."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from hydranet_ros.simulation.atlas import Atlas, FloatImage
from hydranet_ros.simulation.textures import RECIPES, Recipe, fill, noise

PER_M = 256.0  # texels, unless a face says otherwise
POSTERS, PAPERS = 4, 2


def _even(grey: float, amplitude: float, power: float = 1.0, size: int = 512) -> Recipe:
    """A surface of one grey with noise of a relative amplitude."""

    def paint(rng: np.random.Generator) -> FloatImage:
        return np.asarray(grey * (1.0 + amplitude * noise(rng, size, size, power)))

    return Recipe(paint, 8)


def _outside(rng: np.random.Generator) -> FloatImage:
    """What windows show: a bright sky above trees and houses."""
    image = np.linspace(235.0, 200.0, 256, dtype=np.float32)[:, None] + 4.0 * noise(rng, 512, 256)
    rows = np.arange(256, dtype=np.float32)[:, None]
    edge = 150.0 + 14.0 * noise(rng, 512, 2, 1.0)[0]
    cover = np.clip(rows - edge, 0.0, 1.0)
    image = image * (1.0 - cover) + cover * 110.0 * (1.0 + 0.25 * noise(rng, 512, 256, 0.8))
    for x in np.arange(0.0, 500.0, 90.0):
        top = rng.uniform(90.0, 140.0)
        fill(image, x, top, rng.uniform(30.0, 70.0), 256.0, rng.uniform(100.0, 190.0))
        for y in np.arange(top + 6, 220.0, 16.0):
            fill(image, x + 6, y, 8, 9, 60.0)
            fill(image, x + 22, y, 8, 9, 60.0)
    return np.asarray(image, dtype=np.float32)


def _planks(rng: np.random.Generator) -> FloatImage:
    """Boards along u: streaks, joints, and a grey of its own for each."""
    image = np.full((512, 1024), 130.0, dtype=np.float32)
    streaks = cv2.resize(noise(rng, 128, 512, 0.7), (1024, 512), interpolation=cv2.INTER_LINEAR)
    for k, y in enumerate(range(0, 512, 32)):
        cut = int(rng.integers(1024)) if k % 2 else int(rng.integers(512))
        for start, stop in ((0, cut), (cut, 1024)):
            image[y : y + 32, start:stop] = 130.0 * rng.uniform(0.8, 1.2)
        fill(image, cut, y, 2, 32, 60.0)
        fill(image, 0, y, 1024, 1.4, 70.0)
    return np.asarray(image * (1.0 + 0.12 * streaks), dtype=np.float32)


def _tiles(rng: np.random.Generator) -> FloatImage:
    """Equal tiles with joints: nearly the same every 0.25 m."""
    image = 165.0 * (1.0 + 0.015 * noise(rng, 512, 512, 0.8))
    grey = rng.uniform(0.5, 0.9) * 165.0
    for k in range(0, 512, 64):
        fill(image, k, 0, 3, 512, grey)
        fill(image, 0, k, 512, 3, grey)
    return np.asarray(image, dtype=np.float32)


def _chequer(rng: np.random.Generator) -> FloatImage:
    """Tiles of two greys."""
    image = 150.0 * (1.0 + 0.05 * noise(rng, 512, 512, 0.8))
    for k in range(0, 512, 128):
        for j in range(0, 512, 128):
            if (k + j) // 128 % 2:
                image[k : k + 128, j : j + 128] *= 0.6
    return np.asarray(image, dtype=np.float32)


def _speckles(rng: np.random.Generator) -> FloatImage:
    """Lino or terrazzo: many small chips."""
    image = 140.0 * (1.0 + 0.03 * noise(rng, 512, 512, 1.0))
    for _ in range(2500):
        x, y = rng.uniform(0, 512, 2)
        wide, tall = rng.uniform(1.0, 5.0, 2)
        fill(image, x, y, wide, tall, rng.uniform(80.0, 210.0))
    return np.asarray(image, dtype=np.float32)


def _concrete(rng: np.random.Generator) -> FloatImage:
    """Stains, cracks and joints of 4 m slabs."""
    size = 1024
    image = 120.0 * (1.0 + 0.12 * noise(rng, size, size, 1.1))
    image += 5.0 * noise(rng, size, size, 0.4)
    for _ in range(10):
        start = rng.uniform(0, size, 2)
        steps = np.cumsum(rng.normal(0.0, 22.0, (12, 2)) + rng.normal(0.0, 18.0, 2), axis=0)
        points = np.round(start + steps).astype(np.int32)
        cv2.polylines(image, [points], False, 70.0, 1, cv2.LINE_AA)
    for _ in range(12):
        x, y = rng.integers(0, size, 2)
        stain = np.zeros_like(image)
        cv2.circle(stain, (int(x), int(y)), int(rng.integers(4, 30)), 1.0, -1)
        image *= 1.0 - rng.uniform(0.1, 0.4) * cv2.GaussianBlur(stain, (0, 0), 4.0)
    fill(image, 0, 0, 3, size, 75.0)
    fill(image, 0, 0, size, 3, 75.0)
    return np.asarray(image + 3.0 * noise(rng, size, size, 0.3), dtype=np.float32)


def _bricks(rng: np.random.Generator) -> FloatImage:
    image = np.full((512, 512), 150.0, dtype=np.float32)
    for k, y in enumerate(range(0, 512, 16)):
        for x in range(-(k % 2) * 24, 512, 48):
            fill(image, x + 1, y + 1, 46, 14, rng.uniform(85.0, 135.0))
    return np.asarray(image * (1.0 + 0.1 * noise(rng, 512, 512, 0.7)), dtype=np.float32)


def _panels(rng: np.random.Generator) -> FloatImage:
    """A suspended ceiling: square panels with holes, some of them lamps."""
    image = np.full((512, 512), 195.0, dtype=np.float32)
    image *= 1.0 + 0.02 * noise(rng, 512, 512, 0.3)
    for _ in range(3000):
        x, y = rng.uniform(0, 512, 2)
        fill(image, x, y, 1.5, 1.5, 160.0)
    for k in range(0, 512, 128):
        fill(image, k, 0, 3, 512, 140.0)
        fill(image, 0, k, 512, 3, 140.0)
    for y in (0, 256):
        fill(image, 128, y + 4, 124, 120, 262.0)
        for x in range(136, 250, 12):
            fill(image, x, y + 4, 2, 120, 225.0)
    return np.asarray(image, dtype=np.float32)


def _books(rng: np.random.Generator) -> FloatImage:
    """A shelf 2 m wide and 2 m high: boards, and books of all sizes."""
    image = np.full((512, 512), 45.0, dtype=np.float32)
    for base in range(100, 520, 102):
        x = 4.0
        while x < 508.0:
            if rng.random() < 0.07:
                x += rng.uniform(10.0, 60.0)
                continue
            wide, tall = rng.uniform(5.0, 16.0), rng.uniform(50.0, 84.0)
            grey = rng.uniform(40.0, 220.0)
            fill(image, x, base - tall, wide, tall, grey)
            ink = 235.0 if grey < 120.0 else 30.0
            fill(image, x + 2, base - 0.8 * tall, wide - 4, rng.uniform(4.0, 30.0), ink)
            x += wide + rng.uniform(0.5, 1.5)
        fill(image, 0, base, 512, 7, 150.0)
    fill(image, 0, 0, 6, 512, 150.0)
    return np.asarray(image * (1.0 + 0.04 * noise(rng, 512, 512, 0.5)), dtype=np.float32)


def _poster(rng: np.random.Generator) -> FloatImage:
    """Any picture: a background, discs, bars, and lines of text."""
    wide, tall = 256, 256
    image = rng.uniform(80.0, 220.0) * (1.0 + rng.uniform(0.02, 0.3) * noise(rng, wide, tall, 1.2))
    for _ in range(int(rng.integers(2, 9))):
        x, y = (int(k) for k in rng.integers(0, wide, 2))
        grey = float(rng.uniform(20.0, 240.0))
        if rng.random() < 0.5:
            cv2.circle(image, (x, y), int(rng.integers(8, 60)), grey, -1, cv2.LINE_AA)
        else:
            across, down = rng.uniform(10.0, 120.0, 2)
            fill(image, x, y, across, down, grey)
    _write(rng, image, 150.0, 20.0)
    fill(image, 0, 0, wide, 4, 235.0)
    fill(image, 0, 0, 4, tall, 235.0)
    return np.asarray(image, dtype=np.float32)


def _write(rng: np.random.Generator, image: FloatImage, top: float, grey: float) -> None:
    """Lines of words, as bars of the height of letters."""
    height, width = image.shape
    for y in np.arange(top, height - 16.0, 11.0):
        x = 16.0
        while x < width * rng.uniform(0.6, 0.95):
            word = rng.uniform(6.0, 30.0)
            fill(image, x, y, min(word, width - 14.0 - x), 5, grey)
            x += word + 5.0


def _paper(rng: np.random.Generator) -> FloatImage:
    image = 225.0 * (1.0 + 0.01 * noise(rng, 256, 256, 0.8))
    _write(rng, image, 20.0, rng.uniform(40.0, 90.0))
    return np.asarray(image, dtype=np.float32)


def _screen(rng: np.random.Generator) -> FloatImage:
    """A monitor with windows and text."""
    image = np.full((160, 256), 35.0, dtype=np.float32)
    fill(image, 6, 6, 244, 142, rng.uniform(60.0, 200.0))
    for _ in range(3):
        x, y = rng.uniform(8.0, 130.0), rng.uniform(8.0, 60.0)
        fill(image, x, y, 110, 80, rng.uniform(40.0, 240.0))
        fill(image, x, y, 110, 6, 120.0)
        for row in np.arange(y + 12, y + 74, 6.0):
            fill(image, x + 6, row, rng.uniform(20.0, 95.0), 2.5, rng.uniform(60.0, 220.0))
    return image


def _keys(rng: np.random.Generator) -> FloatImage:
    image = np.full((64, 128), 60.0, dtype=np.float32)
    for y in range(6, 58, 11):
        for x in range(4 + int(rng.integers(0, 4)), 122, 10):
            fill(image, x, y, 8, 9, 95.0)
            fill(image, x + 2, y + 2, 3, 3, 190.0)
    return image


def _grain(rng: np.random.Generator) -> FloatImage:
    """Wood of furniture: streaks along u."""
    streaks = cv2.resize(noise(rng, 64, 256, 0.9), (512, 256), interpolation=cv2.INTER_CUBIC)
    return np.asarray(125.0 * (1.0 + 0.13 * streaks), dtype=np.float32)


def _door(rng: np.random.Generator) -> FloatImage:
    image = np.full((256, 128), 150.0, dtype=np.float32)
    image *= 1.0 + 0.02 * noise(rng, 128, 256, 0.8)
    fill(image, 0, 0, 6, 256, 95.0)
    fill(image, 122, 0, 6, 256, 95.0)
    fill(image, 0, 0, 128, 6, 95.0)
    fill(image, 100, 132, 16, 5, 45.0)
    fill(image, 108, 122, 8, 26, 80.0)
    if rng.random() < 0.6:
        fill(image, 40, 40, 44, 18, 225.0)
        fill(image, 46, 45, 30, 3, 40.0)
    fill(image, 0, 232, 128, 24, 130.0)
    return np.asarray(image, dtype=np.float32)


def _glass(rng: np.random.Generator) -> FloatImage:
    """A pane: almost constant, with a soft sheen; frames are faces of their own."""
    sheen = np.linspace(0.0, 2.0 * np.pi, 128, dtype=np.float32)
    image = 150.0 + 25.0 * np.sin(sheen)[None, :] * np.ones((128, 1), dtype=np.float32)
    return np.asarray(image + 2.0 * noise(rng, 128, 128, 2.0), dtype=np.float32)


def _carton(rng: np.random.Generator) -> FloatImage:
    image = 140.0 * (1.0 + 0.05 * noise(rng, 256, 256, 0.9))
    fill(image, 110, 0, 36, 256, 170.0)
    fill(image, 20, 150, 70, 50, 225.0)
    for y in range(156, 196, 9):
        fill(image, 26, y, rng.uniform(20.0, 58.0), 4, 50.0)
    for x in range(160, 240, 5):
        fill(image, x, 180, rng.choice([1.5, 3.0]), 36, 40.0)
    return np.asarray(image, dtype=np.float32)


def _machine(rng: np.random.Generator) -> FloatImage:
    """Sheet metal with doors, vents, lamps and plates."""
    image = 125.0 * (1.0 + 0.04 * noise(rng, 256, 256, 1.0))
    for _ in range(5):
        x, y = rng.uniform(5.0, 190.0, 2)
        wide, tall = rng.uniform(30.0, 90.0, 2)
        fill(image, x, y, wide, tall, 70.0)
        fill(image, x + 2, y + 2, wide - 4, tall - 4, rng.uniform(90.0, 180.0))
        for row in np.arange(y + 8, y + tall - 8, 7.0) if rng.random() < 0.5 else ():
            fill(image, x + 6, row, wide - 12, 3, 45.0)
    for _ in range(14):
        x, y = (int(k) for k in rng.integers(8, 248, 2))
        cv2.circle(image, (x, y), int(rng.integers(2, 7)), float(rng.uniform(20, 250)), -1)
    return np.asarray(image, dtype=np.float32)


def _stripes(_: np.random.Generator) -> FloatImage:
    """Slanting bars of warning paint."""
    y, x = np.indices((64, 64))
    return np.asarray(np.where((x + y) // 16 % 2, 190.0, 45.0), dtype=np.float32)


def _cloth(rng: np.random.Generator) -> FloatImage:
    image = 110.0 * (1.0 + 0.18 * noise(rng, 256, 256, 0.9))
    if rng.random() < 0.5:
        image[::16] *= 1.4
        image[1::16] *= 1.4
    return np.asarray(image, dtype=np.float32)


_INDOOR = {
    "outside": Recipe(_outside, 6),
    "dark": _even(30.0, 0.05, size=64),
    "plain": _even(185.0, 0.012, 1.4),
    "rough": _even(175.0, 0.05, 0.5),
    "bricks": Recipe(_bricks, 8),
    "concrete": Recipe(_concrete, 8),
    "planks": Recipe(_planks, 8),
    "carpet": _even(85.0, 0.16, 0.45),
    "tiles": Recipe(_tiles, 8),
    "chequer": Recipe(_chequer, 8),
    "speckles": Recipe(_speckles, 8),
    "panels": Recipe(_panels, 8),
    "books": Recipe(_books, 7),
    **{f"poster{k}": Recipe(_poster, 7) for k in range(POSTERS)},
    **{f"paper{k}": Recipe(_paper, 7) for k in range(PAPERS)},
    "screen": Recipe(_screen, 6),
    "keys": Recipe(_keys, 5),
    "grain": Recipe(_grain, 7),
    "metal": _even(150.0, 0.02, 1.0, 128),
    "door": Recipe(_door, 6),
    "glass": Recipe(_glass, 6),
    "carton": Recipe(_carton, 7),
    "machine": Recipe(_machine, 7),
    "stripes": Recipe(_stripes, 5),
    "cloth": Recipe(_cloth, 7),
    "skin": _even(165.0, 0.06, 1.0, 64),
    **{name: RECIPES[name] for name in ("car side", "car end", "car glass", "shade", "leaves")},
}
INDOOR_TEXTURES = {name: index for index, name in enumerate(_INDOOR)}


@lru_cache(maxsize=2)
def indoor_atlas(seed: int) -> Atlas:
    """The textures of a seed; the last two are kept, since they take the longest to make."""
    children = np.random.SeedSequence([seed, 5]).spawn(len(_INDOOR))
    recipes = list(_INDOOR.values())
    textures = [
        np.asarray(recipe.paint(np.random.default_rng(child)), dtype=np.float32)
        for recipe, child in zip(recipes, children, strict=True)
    ]
    return Atlas(
        textures,
        [min(recipe.levels, _most_levels(t)) for recipe, t in zip(recipes, textures, strict=True)],
    )


def _most_levels(texture: FloatImage) -> int:
    """How many times both sides can be halved."""
    return int(np.log2(min(texture.shape)))
