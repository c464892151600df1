"""Bad images and calibrations: warned about once, counted, dropped; then it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")
pytest.importorskip("torch", reason="rotations from images need torch")

from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from ros.in_process import counted, finite, overrides, spinning
from ros.node_processes import Bench, StereoRig, camera_info, image, stamp
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, Imu, TimeReference

from hydranet_ros.ros.conversions import stamp_ns
from hydranet_ros.ros.hydranet_node import HydraNetNode
from hydranet_ros.ros.stereo_vo_node import StereoVONode
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

PERIOD = 100_000_000
REPLAY = {"input__reliability": "reliable", "input__depth": 100, "input__queue": 100}


@pytest.fixture(scope="module")
def street() -> SimpleNamespace:
    made = Street(StreetConfig(frames=4))
    return SimpleNamespace(camera=made.camera, frames=list(made))


class World:
    """A mono node for raw images, one for compressed ones, and stereo odometry."""

    def __init__(self, street: SimpleNamespace, weights: Path) -> None:
        self.bench = Bench("bad_images")
        self.street, self.now = street, 1_000 * 10**9
        shape = street.frames[0].left.shape
        self.info = camera_info(street.camera, shape, right=False)
        net = {"gyro__weights": str(weights), "gyro__device": "cpu", **REPLAY}
        self.raw = HydraNetNode(namespace="raw", parameter_overrides=overrides(**net))
        packed = overrides(**net, input__transport="compressed")
        self.packed = HydraNetNode(namespace="packed", parameter_overrides=packed)
        self.vo = StereoVONode(parameter_overrides=overrides(**REPLAY))
        self.raw_image = self.bench.publisher(Image, "/raw/image")
        self.raw_info = self.bench.publisher(CameraInfo, "/raw/camera_info")
        self.packed_image = self.bench.publisher(CompressedImage, "/packed/image/compressed")
        self.packed_info = self.bench.publisher(CameraInfo, "/packed/camera_info")
        self.rig = StereoRig(self.bench, street.camera, shape)
        node = "/raw/hydranet_node/relative_rotation"
        self.heard: dict[str, list[Any]] = {
            "raw": self.bench.hear(PoseWithCovarianceStamped, node),
            "interval": self.bench.hear(TimeReference, f"{node}/interval"),
            "aleatoric": self.bench.hear(PoseWithCovarianceStamped, f"{node}/aleatoric"),
            "epistemic": self.bench.hear(PoseWithCovarianceStamped, f"{node}/epistemic"),
            "persistent": self.bench.hear(PoseWithCovarianceStamped, f"{node}/persistent"),
            "imu": self.bench.hear(Imu, "/raw/imu_visual/data_raw"),
            "packed": self.bench.hear(
                PoseWithCovarianceStamped, "/packed/hydranet_node/relative_rotation"
            ),
            "vo": self.bench.hear(Odometry, "/vo/odometry"),
        }

    def ready(self) -> bool:
        publishers = (self.raw_image, self.raw_info, self.packed_image, self.packed_info)
        all_heard = all(p.get_subscription_count() for p in publishers)
        return all_heard and self.rig.listened(1)

    def tick(self) -> int:
        self.now += PERIOD
        return self.now

    def frame(self, index: int) -> np.ndarray:
        return self.street.frames[index % 4].left

    def send_raw(self, message: Image | None = None, info: CameraInfo | None = None) -> None:
        nanoseconds = self.tick()
        message = message or image(self.frame(nanoseconds // PERIOD), nanoseconds)
        message.header.stamp = stamp(nanoseconds)
        self.raw_info.publish(info or self.info)
        self.bench.spin(0.05)  # a calibration that is to hold for this image comes before it
        self.raw_image.publish(message)

    def goes_on(self) -> None:
        """Two good frames give a rotation with the stamps of the two."""
        self.send_raw()
        self.send_raw()
        wanted = self.now - PERIOD, self.now
        assert self.bench.spin_until(lambda: wanted in self.intervals(), 10.0)
        assert self.bench.spin_until(lambda: self.now in self.stamps("raw"), 10.0)

    def stamps(self, name: str) -> list[int]:
        return [stamp_ns(m.header.stamp) for m in self.heard[name]]

    def intervals(self) -> list[tuple[int, int]]:
        return [(stamp_ns(m.time_ref), stamp_ns(m.header.stamp)) for m in self.heard["interval"]]

    def send_pair(self, index: int, swapped: bool = False) -> int:
        frame = self.street.frames[index]
        images = (frame.right, frame.left) if swapped else (frame.left, frame.right)
        self.rig.send(self.tick(), *images)
        self.bench.spin(0.1)
        return self.now


@pytest.fixture(scope="module")
def world(street: SimpleNamespace, weights: Path) -> Iterator[World]:
    made = World(street, weights)
    try:
        with spinning(made.raw, made.packed, made.vo):
            assert made.bench.spin_until(made.ready, 20.0)
            yield made
            for name, messages in made.heard.items():
                assert messages, name
                assert all(finite(message) for message in messages), name
    finally:
        made.bench.close()


def spoilt(world: World, **fields: Any) -> Image:
    message = image(world.frame(0), world.now)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("encoding", {"encoding": "yuv411"}),
        ("image step", {"step": 100}),
        ("image data", {"data": b"too short"}),
        ("empty image", {"width": 0, "height": 0, "step": 0, "data": b""}),
        ("image size", {"height": 94, "step": 620, "data": bytes(94 * 620)}),
    ],
)
def test_a_bad_image_is_dropped(
    world: World, kind: str, fields: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    world.goes_on()
    before = len(world.heard["raw"])
    capfd.readouterr()
    for _ in range(2):
        world.send_raw(spoilt(world, **fields))
    assert counted(world.bench, world.raw, kind, 2)
    assert len(world.heard["raw"]) == before
    assert capfd.readouterr().err.count(f"[{kind}") == 1  # logged once, counted twice
    world.goes_on()


@pytest.mark.parametrize("spoil", ["nan", "zero", "inf"])
def test_a_bad_calibration_is_refused(world: World, spoil: str) -> None:
    world.goes_on()
    before, count = len(world.heard["raw"]), world.raw.warn.counts["camera_info"]
    bad = deepcopy(world.info)
    bad.k[0] = {"nan": np.nan, "zero": 0.0, "inf": np.inf}[spoil]
    world.send_raw(info=bad)
    world.send_raw(info=bad)
    assert counted(world.bench, world.raw, "camera_info", count + 2)
    assert len(world.heard["raw"]) == before
    world.goes_on()


def test_a_camera_that_changes_begins_anew(world: World) -> None:
    world.goes_on()
    other = deepcopy(world.info)
    other.k[0] *= 1.1
    count = world.raw.warn.counts["camera changed"]
    world.send_raw(info=other)
    first = world.now
    world.send_raw(info=other)
    assert counted(world.bench, world.raw, "camera changed", count + 1)
    assert world.bench.spin_until(lambda: (first, world.now) in world.intervals(), 10.0)
    assert (first - PERIOD, first) not in world.intervals()  # not across two calibrations
    world.goes_on()


def test_equal_stamps_count_once(world: World) -> None:
    world.goes_on()
    world.now -= PERIOD
    world.send_raw()
    assert counted(world.bench, world.raw, "/raw/image: equal stamps")
    world.goes_on()


def test_stamps_that_go_back_begin_anew(world: World) -> None:
    world.goes_on()
    last = world.now
    world.now -= 50 * PERIOD
    world.send_raw()
    world.goes_on()
    assert counted(world.bench, world.raw, "stamps went back")
    assert all(start < end for start, end in world.intervals())
    assert not [pair for pair in world.intervals() if pair[0] == last]
    world.now = last


def test_frames_far_apart_are_no_motion(world: World) -> None:
    world.goes_on()
    last = world.now
    world.now += 100 * PERIOD
    world.goes_on()
    assert counted(world.bench, world.raw, "lost: long_gap")
    assert not [pair for pair in world.intervals() if pair[0] == last]


def test_garbage_instead_of_a_jpeg(world: World) -> None:
    def send(data: bytes) -> None:
        message = CompressedImage(format="jpeg", data=data)
        message.header.stamp = stamp(world.tick())
        world.packed_info.publish(world.info)
        world.packed_image.publish(message)

    good = [cv2.imencode(".jpg", world.frame(i))[1].tobytes() for i in range(4)]
    for data in (good[0], b"", b"garbage", good[1][:200], good[1]):
        send(data)
    assert counted(world.bench, world.packed, "compressed data", 2)
    send(good[2])
    assert world.bench.spin_until(lambda: len(world.heard["packed"]) >= 2, 10.0)


def test_a_swapped_pair_is_told(world: World) -> None:
    for index in range(2):
        world.send_pair(index, swapped=True)
    assert counted(world.bench, world.vo, "swapped_cameras", 2)
    assert not world.heard["vo"]
    world.rig.calibration.reverse()
    world.send_pair(0)
    assert counted(world.bench, world.vo, "baseline")
    assert not world.heard["vo"]
    world.rig.calibration.reverse()
    world.send_pair(0)
    world.send_pair(1)
    assert world.bench.spin_until(lambda: len(world.heard["vo"]) == 2, 10.0)
    start, motion = world.heard["vo"]
    assert start.twist.covariance[0] == 9999.0
    assert motion.twist.covariance[0] < 100.0
    assert motion.twist.twist.linear.x == pytest.approx(6.80, rel=0.01)  # as the street says


def test_a_black_pair_is_bridged(world: World) -> None:
    first = world.send_pair(0)
    black = np.zeros_like(world.street.frames[0].left)
    world.rig.send(world.tick(), black, black)
    last = world.send_pair(2)
    stamps = [first, last]
    assert world.bench.spin_until(lambda: world.stamps("vo")[-2:] == stamps, 10.0)
    assert world.vo.warn.counts["flat_image"] == 1


def test_half_a_pair_is_not_waited_for(world: World) -> None:
    world.rig.images[0].publish(image(world.frame(0), world.tick()))
    before = len(world.heard["vo"])
    world.send_pair(1)
    assert world.bench.spin_until(lambda: len(world.heard["vo"]) > before, 10.0)
    assert world.vo.workers[0].diagnostics()["unmatched"] == "1"
