"""Compressed images on topics that unpack to gigabytes: refused within 300 MB, and it goes on."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")
pytest.importorskip("torch", reason="rotations from images need torch")

from faults.tally import MemoryPeak, Report
from geometry_msgs.msg import PoseWithCovarianceStamped
from ros.node_processes import REPLAY, Bench, StereoRig, processes, stamp
from sensor_msgs.msg import CameraInfo, CompressedImage

from hydranet_ros.ros.conversions import stamp_ns
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

PERIOD = 100_000_000
START = 2_000 * 10**9


def jpeg(width: int, height: int) -> bytes:
    """A small one whose header claims to be large."""
    data = bytearray(cv2.imencode(".jpg", np.zeros((8, 8, 3), np.uint8))[1].tobytes())
    at = data.find(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def png(width: int, height: int, rows: int) -> bytes:
    """All black, and so a thousandth of its size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    pack = zlib.compressobj()
    packed = b"".join(pack.compress(bytes(width + 1)) for _ in range(rows)) + pack.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    ends = chunk(b"IHDR", head), chunk(b"IDAT", packed), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(ends)


BOMBS: dict[str, Callable[[], bytes]] = {
    "jpeg 65500 x 65500": lambda: jpeg(65500, 65500),
    "jpeg 30000 x 30000": lambda: jpeg(30000, 30000),
    "jpeg 20000 x 10": lambda: jpeg(20000, 10),
    "png 20000 x 20000": lambda: png(20000, 20000, 20000),
    "png of 4e9 x 4e9": lambda: png(100, 100, 100).replace(
        struct.pack(">II", 100, 100), struct.pack(">II", 2**31 - 1, 2**31 - 1)
    ),
    "bmp": lambda: (
        cv2.imencode(".bmp", np.zeros((8, 8), np.uint8))[1].tobytes()[:18]
        + struct.pack("<ii", 60000, 60000)
        + bytes(2000)
    ),
    "tiff": lambda: cv2.imencode(".tiff", np.zeros((3000, 3000), np.uint8))[1].tobytes(),
    "not an image of 30 MB": lambda: b"\xff\xd8" + bytes(30_000_000),
}


@pytest.mark.faults
def test_images_that_unpack_to_gigabytes(report: Report, tmp_path: Path) -> None:
    """A node of its own, so that its memory is its own; then it goes on."""
    row = report.row("bombs over topics")
    street = Street(StreetConfig(frames=8, width=310, height=120, seed=3))
    good = [cv2.imencode(".jpg", frame.left)[1].tobytes() for frame in street]
    arguments = [*REPLAY, "-p", "gyro.device:=cpu", "-p", "input.transport:=compressed"]
    bench = Bench("bomber")
    try:
        with processes(tmp_path, hydranet_node=arguments) as nodes:
            node = nodes["hydranet_node"]
            camera = SimpleNamespace(
                bench=bench,
                image=bench.publisher(CompressedImage, "image/compressed"),
                info=bench.publisher(CameraInfo, "camera_info"),
                now=START,
            )
            rig = StereoRig(bench, street.camera, (120, 310), "unused/")
            camera.info_message = rig.calibration[0]
            heard = bench.hear(PoseWithCovarianceStamped, "hydranet_node/relative_rotation")
            assert bench.spin_until(camera.image.get_subscription_count, 60.0), node.log
            bench.spin(1.0)
            assert goes_on(camera, good, heard), node.log
            for name, bomb in BOMBS.items():
                row.tried += 1
                peak = MemoryPeak(node.process.pid)
                send(camera, bomb())
                alive = goes_on(camera, good, heard)
                row.memory_mb = max(row.memory_mb, peak.above_idle_mb)
                row.notes.append(f"{name}: {peak.above_idle_mb:.0f} MB")
                if not alive or not node.running:
                    row.crash(f"{name}: {node.log[-2000:]}")
                    break
    finally:
        bench.close()
    row.check()


def send(camera: SimpleNamespace, data: bytes) -> None:
    camera.now += PERIOD
    message = CompressedImage(format="jpeg", data=data)
    message.header.stamp = stamp(camera.now)
    camera.info.publish(camera.info_message)
    camera.image.publish(message)


def goes_on(camera: SimpleNamespace, good: list[bytes], heard: list[Any]) -> bool:
    """Whether good images give a rotation."""
    for data in good[:4]:
        send(camera, data)
        camera.bench.spin(0.05)
    now = camera.now
    return bool(
        camera.bench.spin_until(lambda: any(stamp_ns(m.header.stamp) == now for m in heard), 20.0)
    )
