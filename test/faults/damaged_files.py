"""Valid small files of every kind that a command reads, and ways to damage them."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import yaml

SIZE = 240, 96  # width and height of the images
FRAMES = 3
NUMBERS = (
    *("nan", "inf", "-inf", "-1", "0", "1e300", "-1e300", "1e10", "1e-300", "1e9", "2.5"),
    *("99999999999999999999", "1" * 5000, "true", "null", "", "x", "[]", "{}", "'", "0x10"),
)
NUMBER = re.compile(rb"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")

Mutation = Callable[[bytes, random.Random], bytes]


# --- damage --------------------------------------------------------------------------------------


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut_off(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.choice((0, 1, 7, rng.randrange(len(data)), len(data) - 1))]


def zero_block(data: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data)), rng.choice((4, 64, 1000))
    return data[:at] + bytes(len(data[at : at + length])) + data[at + length :]


def repeat_block(data: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data)), rng.choice((1, 16, 300))
    return data[: at + length] + data[at:]


def huge_field(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(max(1, len(data) - 8))
    return data[:at] + rng.choice((b"\xff" * 4, b"\xff" * 8, b"\xff\xff\xff\x7f")) + data[at + 4 :]


def replace_number(data: bytes, rng: random.Random) -> bytes:
    found = list(NUMBER.finditer(data))
    if not found:
        return flip_bits(data, rng)
    at = rng.choice(found)
    return data[: at.start()] + rng.choice(NUMBERS).encode() + data[at.end() :]


def swap_fields(data: bytes, rng: random.Random) -> bytes:
    words = re.split(rb"(\s+)", data)
    if len(words) < 4:
        return flip_bits(data, rng)
    i, j = (2 * rng.randrange(len(words) // 2) for _ in range(2))
    words[i], words[j] = words[j], words[i]
    return b"".join(words)


def swap_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"".join(lines)


def drop_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def strange_text(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    what = (b"\0", b"\x1b[2J", b"\xff\xfe", b"\n\n\n", b"#", b"\xe2\x80\xae", b"[" * 5000, b": ")
    return data[:at] + rng.choice(what) + data[at:]


BINARY: tuple[Mutation, ...] = (flip_bits, cut_off, zero_block, repeat_block, huge_field)
TEXT: tuple[Mutation, ...] = (
    *(replace_number, replace_number, swap_fields, swap_lines, drop_line),
    *(strange_text, flip_bits, cut_off),
)


# --- valid files ---------------------------------------------------------------------------------


def images(folder: Path, suffix: str = ".png") -> None:
    """A textured wall that comes nearer, for both cameras."""
    rng = np.random.default_rng(0)
    wall = cv2.GaussianBlur(rng.integers(0, 255, (300, 600), dtype=np.uint8), (0, 0), 1.5)
    wall = cv2.normalize(wall, None, 0, 255, cv2.NORM_MINMAX)
    for side in (0, 1):
        (folder / f"image_{side}").mkdir(parents=True, exist_ok=True)
        for i in range(FRAMES):
            x, y = 100 + 3 * i + 8 * side, 80 + i
            part = wall[y : y + SIZE[1], x : x + SIZE[0]]
            cv2.imwrite(str(folder / f"image_{side}" / f"{i:06d}{suffix}"), part)


def kitti_folder(folder: Path, suffix: str = ".png") -> Path:
    images(folder, suffix)
    P = "{}: 140 0 120 {} 0 140 48 0 0 0 1 0\n"
    (folder / "calib.txt").write_text(P.format("P0", 0) + P.format("P1", -75.6))
    (folder / "times.txt").write_text("".join(f"{0.1 * i:.6e}\n" for i in range(FRAMES)))
    rows = [f"1 0 0 {0.02 * i} 0 1 0 0 0 0 1 {0.1 * i}\n" for i in range(FRAMES)]
    (folder / "poses.txt").write_text("".join(rows))
    return folder


def tum_text(count: int = 6) -> str:
    rows = (f"{1e9 + 0.1 * i:.3f} {0.5 * i} 0.1 {0.02 * i * i} 0 0 0 1\n" for i in range(count))
    return "# stamp x y z qx qy qz qw\n\n" + "".join(rows)


def recording(path: Path, count: int = 6) -> Path:
    poses = np.tile(np.eye(4), (count, 1, 1))
    poses[:, 2, 3] = np.arange(count)
    eye6, eye3 = (np.tile(np.eye(n), (count - 1, 1, 1)) for n in (6, 3))
    np.savez(
        path,
        T_w_c_vo=poses,
        Sigma_21_vo=1e-4 * eye6,
        C_21_hn=eye3,
        Sigma_21_hn=1e-6 * eye3,
        T_w_c_gt_oxts=poses,
        stamps_ns=np.arange(count) * 100_000_000,
    )
    return path


def bag(folder: Path, source: Path, storage: str, compressed: bool) -> Path:
    from hydranet_ros.datasets.bag_files import write_bag
    from hydranet_ros.datasets.bag_messages import recorded
    from hydranet_ros.datasets.kitti import KittiFolder

    write_bag(folder, recorded(KittiFolder(source), compressed), storage)
    return folder


TRAINING = {
    "seed": 3,
    "epochs": 1,
    "steps_per_epoch": 2,
    "batch_size": 4,
    "network": {"heads": 3},
    "data": {
        "streets": 1,
        "validation_streets": 1,
        "calibration_streets": 1,
        "frames_per_street": 3,
        "gaps": [1],
        "unusual": 1,
    },
}


class Valid:
    """One of each, made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kitti = kitti_folder(folder / "kitti")
        self.jpeg = kitti_folder(folder / "jpeg", ".jpg")

    def text(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.write_text(content)
        return path

    def weights(self) -> Path:
        from hydranet_ros.gyro.visual_gyro import DEFAULT_WEIGHTS

        return Path(shutil.copy(DEFAULT_WEIGHTS, self.folder / "net.safetensors"))

    def training(self) -> Path:
        return self.text("training.yaml", yaml.safe_dump(TRAINING))

    def settings(self) -> Path:
        from hydranet_ros.pipeline import PipelineConfig
        from hydranet_ros.settings import to_yaml

        return self.text("settings.yaml", to_yaml(PipelineConfig(parts="vo")))

    def bag(self, storage: str, compressed: bool = False) -> Path:
        path = self.folder / f"{storage}_{compressed}"
        if not path.exists():
            bag(path, self.kitti, storage, compressed)
        return path


def finite(text: str) -> None:
    """Read JSON, and refuse what is not a finite number."""

    def no(constant: str) -> None:
        raise AssertionError(f"{constant} in the results: {text}")

    json.loads(text, parse_constant=no)
