"""Nodes that look: images and calibrations of a drive whose poses are known."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import product
from typing import Any

import cv2
import numpy as np
from faults.tally import DEGREES, Row, confident_and_wrong
from faults.worlds import World, judge_odometry
from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from ros.in_process import overrides
from ros.node_processes import camera_info, image, stamp
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, Imu, TimeReference
from std_srvs.srv import Trigger

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.stamps import StampMatcher
from hydranet_ros.ros.conversions import rotation_from, stamp_ns
from hydranet_ros.ros.extrinsics import FramesConfig
from hydranet_ros.ros.hydranet_node import HydraNetNode
from hydranet_ros.ros.stereo_vo_node import StereoVONode
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import StereoFrame, Street

T_b_c = FramesConfig().T_b_c
REPLAY = {"input__reliability": "reliable", "input__depth": 100, "input__queue": 10_000}
PERIOD = 100_000_000
FRAMES = 12


class Drive:
    """Frames at 10 Hz with their poses, there and back and there again for ever."""

    def __init__(self, camera: Any, frames: list[Any], T_w_c: np.ndarray) -> None:
        self.camera, self._frames, self._T_w_c = camera, frames, T_w_c

    def frame(self, number: int) -> Any:
        """The pair of images so many periods after the first."""
        return self._frames[round(self._place(number))]

    def _place(self, periods: float) -> float:
        last = len(self._frames) - 1
        return last - abs(periods % (2 * last) - last)

    def pose(self, seconds: float) -> np.ndarray:
        """T_w_c so long after the first frame, also between frames."""
        at = self._place(seconds * 1e9 / PERIOD)
        first = min(int(at), len(self._frames) - 2)
        one, two = self._T_w_c[first], self._T_w_c[first + 1]
        return np.asarray(
            one @ lie.se3_exp((at - first) * lie.se3_log(lie.se3_inverse(one) @ two))
        )

    def since(self, start: float, end: float) -> np.ndarray:
        """T_2_1 between two times."""
        return np.asarray(lie.se3_inverse(self.pose(end)) @ self.pose(start))


@cache
def small_street(motion: str) -> Drive:
    """As small as VO still sees something in; a hand turns by degrees from frame to frame."""
    street = Street(StreetConfig(frames=FRAMES, width=310, height=120, seed=3, motion=motion))
    frames: list[StereoFrame] = list(street)
    return Drive(street.camera, frames, street.T_w_c)


class CameraWorld(World):
    """A node that looks at a drive."""

    kind: str

    def __init__(self, row: Row, drive: Drive, node: Callable[[], Any], name: str) -> None:
        super().__init__(row, node)
        self.drive, self.name = drive, name
        self.start, self.index, self.note = 10**12, 0, ""
        self._lies: dict[int, list[float]] = {}
        self.infos: dict[Any, CameraInfo] = {}

    @property
    def now(self) -> int:
        """The stamp of the frame that is next."""
        return self.start + self.index * PERIOD

    def times(self, nanoseconds: int) -> list[float]:
        """When images with this stamp may have been taken, since the first frame."""
        return [(nanoseconds - self.start) * 1e-9, *self._lies.get(nanoseconds, ())]

    def _note_lie(self, message: Any) -> None:
        """Between two images with wrong stamps the motion that they show is right as well."""
        if not isinstance(message, bytes):
            claimed = stamp_ns(message.header.stamp)
            if claimed != self.now:
                self._lies.setdefault(claimed, []).append(self.index * PERIOD * 1e-9)

    def ready(self) -> bool:
        """Whether the two have found each other."""
        publishers = [*self.infos, *(publisher for publisher, _ in self.images())]
        return all(publisher.get_subscription_count() for publisher in publishers)

    def begin(self, note: str) -> None:
        """Begin anew, long after what was before."""
        assert self.wait_for(self.ready)
        answer = self.bench.call(Trigger, f"{self.name}/reset", Trigger.Request())
        assert answer.success
        self.judge(self.note)
        self.start, self.index, self.note = self.start + 10**12, 0, note
        self._lies.clear()
        self.origin: float | None = None

    def good_frames(self, frames: int) -> None:
        """The next frames of the drive, with their calibration."""
        self.calibrate()
        for _ in range(frames):
            for publisher, message in self.images():
                self.publish(publisher, message)
            self.index += 1

    def calibrate(self) -> None:
        """Send the calibration, and see that it arrives before the next image does."""
        for publisher, info in self.infos.items():
            self.publish(publisher, info)
        self.drain()

    def attack(self, rng: np.random.Generator, spoil: Callable[[Any], Any]) -> None:
        """A frame with one wrong image or a wrong calibration, and wrong calibrations before."""
        for _ in range(4):
            publisher, info = self._any(rng, list(self.infos.items()))
            info.header.stamp = stamp(self.now)
            self.publish(publisher, spoil(deepcopy(info)))
        if rng.random() < 0.5:
            self.calibrate()
        wrong, _ = self._any(rng, self.images())
        for publisher, message in self.images():
            told = spoil(message) if publisher is wrong else message
            self._note_lie(told)
            self.publish(publisher, told)
        self.index += 1

    def _any(self, rng: np.random.Generator, choices: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        return choices[rng.integers(len(choices))]

    def goes_on(self) -> bool:
        """Whether there is an estimate of the last frame; if not, that counts like a crash."""
        self.drain()
        last = stamp(self.now - PERIOD)
        alive = self.wait_for(lambda: any(m.header.stamp == last for m in self.estimates))
        if not alive and not self.crashed:
            self.row.crash(f"{self.note}: no estimate any more; {dict(self.nodes[0].warn.counts)}")
        self.judge(self.note)
        return alive

    estimates: list[Any]

    @abstractmethod
    def images(self) -> list[tuple[Any, Any]]:
        """The messages of the next frame."""


class GyroWorld(CameraWorld):
    """hydranet_node with the weights that ship, and one camera in a hand."""

    kind = "messages to hydranet_node"
    transport, image_kind, topic = "raw", Image, "image"

    def __init__(self, row: Row) -> None:
        parameters = overrides(gyro__device="cpu", input__transport=self.transport, **REPLAY)
        drive = small_street("handheld")
        super().__init__(
            row, drive, lambda: HydraNetNode(parameter_overrides=parameters), "hydranet_node"
        )
        shape = drive.frame(0).left.shape
        info = self.bench.publisher(CameraInfo, "camera_info")
        self.infos = {info: camera_info(drive.camera, shape, right=False)}
        self._publisher = self.bench.publisher(self.image_kind, self.topic)
        self._halves: StampMatcher[Any] = StampMatcher(2, 0)
        topic = "hydranet_node/relative_rotation"
        self.hear(TimeReference, f"{topic}/interval", lambda m: self._judge_half(1, m))
        self.estimates = self.hear(
            PoseWithCovarianceStamped, topic, lambda m: self._judge_half(0, m)
        )
        self.hear(Imu, "imu_visual/data_raw")

    def pixels(self) -> np.ndarray:
        """Of the next frame."""
        return np.asarray(self.drive.frame(self.index).left)

    def images(self) -> list[tuple[Any, Any]]:
        """One."""
        return [(self._publisher, image(self.pixels(), self.now))]

    def _judge_half(self, side: int, message: Any) -> None:
        match = self._halves.add(side, stamp_ns(message.header.stamp), message)
        if match is None:
            return
        found = rotation_from(*match)
        intervals = product(self.times(found.stamp_1_ns), self.times(found.stamp_2_ns))
        errors = [
            lie.so3_log(found.C_2_1 @ self.drive.since(*interval)[:3, :3].T)
            for interval in intervals
        ]
        if all(confident_and_wrong(e, found.Sigma_2_1, np.deg2rad(DEGREES)) for e in errors):
            self.row.wrong += 1
            start, end = (self.times(each)[0] for each in (found.stamp_1_ns, found.stamp_2_ns))
            self.row.notes.append(
                f"{self.note}: from {start:.3f} to {end:.3f} s off by "
                f"{np.rad2deg(np.linalg.norm(errors[0])):.2f} deg"
            )


class PackedWorld(GyroWorld):
    """The same with compressed images."""

    kind = "compressed images to hydranet_node"
    transport, image_kind, topic = "compressed", CompressedImage, "image/compressed"

    def images(self) -> list[tuple[Any, Any]]:
        """One, as a JPEG or a PNG."""
        suffix = (".jpg", ".png")[self.index % 2]
        data = cv2.imencode(suffix, self.pixels())[1].tobytes()
        message = CompressedImage(format=suffix[1:], data=data)
        message.header.stamp, message.header.frame_id = stamp(self.now), "camera_left"
        return [(self._publisher, message)]


class StereoWorld(CameraWorld):
    """stereo_vo_node in a car."""

    kind = "messages to stereo_vo_node"

    def __init__(self, row: Row) -> None:
        drive = small_street("car")
        super().__init__(
            row,
            drive,
            lambda: StereoVONode(parameter_overrides=overrides(**REPLAY)),
            "stereo_vo_node",
        )
        shape, sides = drive.frame(0).left.shape, ("left", "right")
        self.infos = {
            self.bench.publisher(CameraInfo, f"{side}/camera_info"): camera_info(
                drive.camera, shape, side == "right"
            )
            for side in sides
        }
        self._publishers = [self.bench.publisher(Image, f"{side}/image_rect") for side in sides]
        self.estimates = self.hear(Odometry, "vo/odometry", self._judge)

    def images(self) -> list[tuple[Any, Any]]:
        """A pair."""
        frame = self.drive.frame(self.index)
        messages = [image(pixels, self.now) for pixels in (frame.left, frame.right)]
        return list(zip(self._publishers, messages, strict=True))

    def _judge(self, message: Odometry) -> None:
        times = self.times(stamp_ns(message.header.stamp))
        self.origin = times[0] if self.origin is None else self.origin  # the first is the identity
        outcomes = [Row("one of the times") for _ in times]
        for outcome, now in zip(outcomes, times, strict=True):
            T_2_1 = self.drive.since(self.origin, now)
            truth = T_b_c @ lie.se3_inverse(T_2_1) @ lie.se3_inverse(T_b_c)
            judge_odometry(outcome, message, truth, self.note)
        if all(outcome.wrong for outcome in outcomes):
            self.row.wrong += 1
            self.row.notes += outcomes[0].notes
