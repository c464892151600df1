"""Pairs of images that no network can read a rotation from, made from pairs that are in order.

Training teaches the heads to disagree on their flow (see `training.loss`), so that the epistemic
covariance grows on these, and on others unlike the ordinary pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.geometry.camera import Image

Pair = tuple[Image, Image]
Rng = np.random.Generator


def blank(first: Image, second: Image, rng: Rng) -> Pair:
    """No picture: the lens is covered or points at the sky; with some noise, or none."""
    sigma = rng.uniform(0.0, 3.0) * (rng.random() < 0.5)
    level = rng.uniform(0.0, 255.0)
    return _noisy(np.full(first.shape, level), sigma, rng), _noisy(
        np.full(first.shape, level), sigma, rng
    )


def noise(first: Image, second: Image, rng: Rng) -> Pair:
    """Nothing but noise, new in each image."""
    if rng.random() < 0.5:
        return _speckle(first.shape, rng), _speckle(first.shape, rng)
    sigma = rng.uniform(20.0, 80.0)
    grey = np.full(first.shape, 127.0)
    return _noisy(grey, sigma, rng), _noisy(grey, sigma, rng)


def scrambled(first: Image, second: Image, rng: Rng) -> Pair:
    """Tiles in a random order: the same in both images, or not."""
    tile = int(np.exp(rng.uniform(np.log(6.0), np.log(0.4 * min(first.shape)))))
    seed = int(rng.integers(2**31))
    other = seed if rng.random() < 0.6 else seed + 1
    return _shuffle(first, tile, seed), _shuffle(second, tile, other)


def blurred(first: Image, second: Image, rng: Rng) -> Pair:
    """Out of focus by far: a point becomes 2 to 20 % of the image's width."""
    sigma = first.shape[1] * np.exp(rng.uniform(np.log(0.005), np.log(0.06)))
    return _image(cv2.GaussianBlur(first, (0, 0), sigma)), _image(
        cv2.GaussianBlur(second, (0, 0), sigma)
    )


def moving_scene(first: Image, second: Image, rng: Rng) -> Pair:
    """The camera stands still and large parts of what it sees move."""
    height, width = first.shape
    before, after = first.copy(), first.copy()
    drift = rng.normal(0.0, 0.02 * width, 2)
    for _ in range(int(rng.integers(2, 9))):
        size = (rng.uniform(0.15, 0.6, 2) * (width, height)).astype(int)
        corner = (rng.uniform(-0.1, 0.8, 2) * (width, height)).astype(int)
        shift = drift + rng.normal(0.0, 0.01 * width, 2)
        _paste(after, before, corner, size, shift)
    return before, _noisy(after.astype(np.float64), rng.uniform(0.0, 2.0), rng)


def unrelated(first: Image, second: Image, rng: Rng) -> Pair:
    """Two pictures of different places: the second mirrored, or moved far."""
    if rng.random() < 0.5:
        return first, _image(cv2.flip(second, 1))
    far = int(second.shape[1] * rng.uniform(0.3, 0.7))
    return first, np.roll(second, far, axis=1)


KINDS: dict[str, Callable[[Image, Image, Rng], Pair]] = {
    "blank": blank,
    "noise": noise,
    "scrambled": scrambled,
    "blurred": blurred,
    "moving_scene": moving_scene,
    "unrelated": unrelated,
}


def _image(array: NDArray[np.generic]) -> Image:
    return np.ascontiguousarray(array, dtype=np.uint8)


def _noisy(image: NDArray[np.float64], sigma: float, rng: Rng) -> Image:
    noisy = image + sigma * rng.standard_normal(image.shape) if sigma > 0.0 else image
    return np.asarray(np.clip(np.rint(noisy), 0, 255), dtype=np.uint8)


def _speckle(shape: tuple[int, ...], rng: Rng) -> Image:
    return rng.integers(0, 256, shape).astype(np.uint8)


def _shuffle(image: Image, tile: int, seed: int) -> Image:
    """Exchange whole tiles; what does not fill one stays."""
    rows, columns = image.shape[0] // tile, image.shape[1] // tile
    part = image[: rows * tile, : columns * tile].reshape(rows, tile, columns, tile)
    tiles = part.swapaxes(1, 2).reshape(-1, tile, tile)
    tiles = tiles[np.random.default_rng(seed).permutation(len(tiles))]
    out = image.copy()
    whole = tiles.reshape(rows, columns, tile, tile).swapaxes(1, 2)
    out[: rows * tile, : columns * tile] = whole.reshape(rows * tile, columns * tile)
    return out


def _paste(
    target: Image,
    source: Image,
    corner: NDArray[np.int_],
    size: NDArray[np.int_],
    shift: NDArray[np.float64],
) -> None:
    """Move a rectangle of `source` by a fraction of pixels, in place in `target`."""
    height, width = source.shape
    moved = cv2.warpAffine(
        source,
        np.array([[1.0, 0.0, shift[0]], [0.0, 1.0, shift[1]]]),
        (width, height),
        borderMode=cv2.BORDER_REFLECT_101,
    )
    x, y = np.clip(corner, 0, None)
    box = np.s_[y : y + size[1], x : x + size[0]]
    target[box] = moved[box]
