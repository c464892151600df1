"""Small files that claim, or unpack to, gigabytes: refused in one line, within 300 MB."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("rosbags")

from faults.damaged_files import bag, kitti_folder, recording, tum_text

MOST_MB = 300.0
MEASURED = """\
import re, sys
from hydranet_ros.cli.__main__ import main
try:
    code = main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
sys.stdout.flush()
status = open("/proc/self/status").read()
print(int(re.search(r"VmHWM:\\s*(\\d+)", status)[1]) / 1024, file=sys.stderr)
sys.exit(code)
"""


def run(*arguments: object) -> tuple[int, list[str], float]:
    """Exit code, lines on stderr, and peak memory in MB of a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    *lines, peak = done.stderr.splitlines()
    return done.returncode, lines, float(peak)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@cache
def idle(command: str, folder: Path) -> float:
    """The peak memory of the same command on a good small file."""
    if command == "fuse":
        arguments: tuple[object, ...] = ("fuse", recording(folder / "good.npz"))
    elif command == "evaluate":
        (folder / "good.tum").write_text(tum_text())
        arguments = ("evaluate", folder / "good.tum", folder / "good.tum")
    elif command == "train":
        arguments = ("train", "--dump-config")
    else:
        arguments = ("run", kitti_folder(folder / "good"), "--only", command)
    code, lines, peak = run(*arguments)
    assert code == 0, lines
    return peak


def jpeg(width: int, height: int, progressive: bool = False) -> bytes:
    options = [cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive)]
    data = bytearray(cv2.imencode(".jpg", np.zeros((8, 8, 3), np.uint8), options)[1].tobytes())
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    pack = zlib.compressobj()
    rows = b"".join(pack.compress(bytes(width + 1)) for _ in range(height)) + pack.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def with_image(folder: Path, data: bytes) -> list[object]:
    source = kitti_folder(folder / "images", ".jpg")
    (source / "image_0" / "000000.jpg").write_bytes(data)
    return ["run", source, "--only", "vo"]


def in_a_bag(folder: Path, data: bytes) -> list[object]:
    """A bag whose first image is this one."""
    from hydranet_ros.datasets import bag_messages
    from hydranet_ros.datasets.bag_files import read_messages, write_bag

    good = bag(folder / "good_bag", kitti_folder(folder / "frames"), "mcap", True)
    messages, changed = list(read_messages(good)), False
    for i, message in enumerate(messages):
        if message.type == bag_messages.COMPRESSED_IMAGE and not changed:
            content = bag_messages.unpack(message)
            content.data = np.frombuffer(data, np.uint8)
            messages[i] = bag_messages.pack(message.topic, message.type, message.stamp_ns, content)
            changed = True
    write_bag(folder / "bad_bag", messages, "mcap")
    return ["run", folder / "bad_bag", "--only", "vo"]


def huge_shape(folder: Path) -> list[object]:
    """An array whose header says 12 GB."""
    good = np.load(recording(folder / "good.npz"))
    path = folder / "huge.npz"
    header = str({"descr": "<f8", "fortran_order": False, "shape": (10**8, 4, 4)}).encode()
    header += b" " * (117 - len(header)) + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(1000)
    with zipfile.ZipFile(path, "w") as archive:
        for name in good.files:
            with archive.open(f"{name}.npy", "w") as file:
                if name == "T_w_c_vo":
                    file.write(array)
                else:
                    np.lib.format.write_array(file, good[name])
    return ["fuse", path]


def zip_bomb(folder: Path) -> list[object]:
    """Megabytes that unpack to a gigabyte of poses."""
    header = str({"descr": "<f8", "fortran_order": False, "shape": (2**23, 4, 4)}).encode()
    header += b" " * (117 - len(header)) + b"\n"
    with (
        zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made,
        made.open("poses.npy", "w", force_zip64=True) as file,
    ):
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
        for _ in range(64):
            file.write(bytes(1 << 24))
    return ["evaluate", f"{folder / 'bomb.npz'}:poses", f"{folder / 'bomb.npz'}:poses"]


def laughs(folder: Path) -> Path:
    """YAML whose aliases are 10^9 texts."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    path = folder / "laughs.yaml"
    path.write_text("\n".join([*lines, "seed: *a8", "gyro: {device: *a8}"]))
    return path


def metadata(folder: Path, text: str) -> list[object]:
    made = bag(folder / "bag", kitti_folder(folder / "frames"), "sqlite3", False)
    (made / "metadata.yaml").write_text(text)
    return ["run", made, "--only", "vo"]


def zstd_message(folder: Path) -> list[object]:
    """A bag whose messages are compressed, one of them to a gigabyte."""
    from hydranet_ros.datasets.bag_files import zstd

    made = bag(folder / "bag", kitti_folder(folder / "frames"), "sqlite3", False)
    text = (made / "metadata.yaml").read_text()
    text = text.replace("compression_format: ''", "compression_format: zstd")
    (made / "metadata.yaml").write_text(
        text.replace("compression_mode: ''", "compression_mode: message")
    )
    assert "compression_mode: message" in (made / "metadata.yaml").read_text()
    with sqlite3.connect(next(made.glob("*.db3"))) as database:
        database.execute("UPDATE messages SET data = ?", [zstd.compress(bytes(1 << 30))])
    database.close()
    return ["run", made, "--only", "vo"]


def mcap_chunk(folder: Path) -> list[object]:
    """A chunk of zstd that says it is small, and is a gigabyte."""
    from hydranet_ros.datasets.bag_files import zstd

    def record(kind: int, content: bytes) -> bytes:
        return bytes([kind]) + struct.pack("<Q", len(content)) + content

    def text(value: str) -> bytes:
        return struct.pack("<I", len(value)) + value.encode()

    packed = zstd.compress(bytes(1 << 30))
    chunk = struct.pack("<QQQI", 0, 1, 1000, 0) + text("zstd")
    chunk += struct.pack("<Q", len(packed)) + packed
    magic = b"\x89MCAP0\r\n"
    path = folder / "bomb.mcap"
    path.write_bytes(
        magic
        + record(1, text("ros2") + text(""))
        + record(6, chunk)
        + record(2, struct.pack("<QQI", 0, 0, 0))
        + magic
    )
    return ["run", path, "--only", "vo"]


def safetensors(folder: Path, header: int) -> list[object]:
    path = folder / "net.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", header))
        file.write(b'{"a":{},' + b'"b":{},' * (min(header, 90 << 20) // 7))
    return ["run", kitti_folder(folder / "frames"), "--weights", path, "--only", "rotation"]


def sparse(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(8 << 30)
    return path


def sparse_in_folder(folder: Path, name: str) -> list[object]:
    source = kitti_folder(folder / "frames")
    sparse(source / name)
    return ["run", source, "--only", "vo"]


def sparse_bag(folder: Path, storage: str) -> list[object]:
    made = bag(folder / "bag", kitti_folder(folder / "frames"), storage, False)
    (file,) = (path for path in made.iterdir() if path.suffix != ".yaml")
    return ["run", sparse(file), "--only", "vo"]


def big_grid(folder: Path) -> list[object]:
    """Weights that describe a network of terabytes."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    from hydranet_ros.gyro.visual_gyro import DEFAULT_WEIGHTS

    with safe_open(DEFAULT_WEIGHTS, "pt") as file:
        description = json.loads(file.metadata()["hydranet"])
    description.pop("sha256")
    description["network"]["grid"].update(rows=1152, columns=1152)
    description["network"].update(input_shape=[3, 1152, 1152], features=65536, heads=1024)
    path = folder / "net.safetensors"
    save_file(load_file(DEFAULT_WEIGHTS), path, {"hydranet": json.dumps(description)})
    return ["run", kitti_folder(folder / "frames"), "--weights", path, "--only", "rotation"]


QUICK: dict[str, Callable[[Path], list[object]]] = {
    "jpeg": lambda f: with_image(f, jpeg(65500, 65500)),
    "jpeg in a bag": lambda f: in_a_bag(f, jpeg(65500, 65500)),
    "array header": huge_shape,
    "yaml aliases": lambda f: ["run", "street", "--config", laughs(f), "--only", "vo"],
    "mcap chunk": mcap_chunk,
    "safetensors header": lambda f: safetensors(f, 2**40),
}
SLOW: dict[str, Callable[[Path], list[object]]] = {
    "largest progressive jpeg": lambda f: with_image(f, jpeg(5792, 5792, True)),
    "png": lambda f: with_image(f, png(20000, 20000)),
    "largest png": lambda f: with_image(f, png(5792, 5792)),
    "png in a bag": lambda f: in_a_bag(f, png(20000, 20000)),
    "zip": zip_bomb,
    "training aliases": lambda f: ["train", "--config", laughs(f), "--dump-config"],
    "metadata aliases": lambda f: metadata(f, laughs(f).read_text()),
    "deep metadata": lambda f: metadata(f, "a: " + "[" * 100_000),
    "large metadata": lambda f: metadata(f, "a: [" + "1, " * 3_000_000),
    "zstd message": zstd_message,
    "long safetensors header": lambda f: safetensors(f, 90 << 20),
    "described network": big_grid,
    "8 GB times.txt": lambda f: sparse_in_folder(f, "times.txt"),
    "8 GB calib.txt": lambda f: sparse_in_folder(f, "calib.txt"),
    "8 GB poses.txt": lambda f: sparse_in_folder(f, "poses.txt"),
    "8 GB image": lambda f: sparse_in_folder(f, "image_0/000001.png"),
    "8 GB recording": lambda f: ["fuse", sparse(recording(f / "huge.npz"))],
    "8 GB trajectory": lambda f: ["evaluate", sparse(f / "a.tum"), sparse(f / "a.tum")],
    "8 GB mcap": lambda f: sparse_bag(f, "mcap"),
    "8 GB sqlite": lambda f: sparse_bag(f, "sqlite3"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("good")


def check(name: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (QUICK | SLOW)[name](tmp_path)
    try:
        code, lines, peak = run(*arguments)
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)
    above = peak - idle(str(arguments[-1] if "--only" in arguments else arguments[0]), good)
    with capsys.disabled():
        print(f"\n{name:<26} exit code {code}, {above:6.0f} MB above idle", end="")
    assert code == 2 or "8 GB sqlite" in name, lines
    ours = [line for line in lines if not line.startswith("Corrupt JPEG data")]  # libjpeg's own
    assert len(ours) <= 1, lines
    assert above < MOST_MB


@pytest.mark.parametrize("name", QUICK)
def test_bombs(name: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(name, tmp_path, good, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_bombs(
    name: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(name, tmp_path, good, capsys)
