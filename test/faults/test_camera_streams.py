"""Cameras that go wrong as real ones do, in a turn of KITTI 09, with all three nodes.

Where the recording is absent, the street is simulated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")
pytest.importorskip("torch", reason="rotations from images need torch")

from faults.tally import DEGREES, Report, Row, confident_and_wrong
from faults.worlds import World, judge_odometry
from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from ros.in_process import overrides
from ros.node_processes import REMAPS, camera_info, image, stamp
from sensor_msgs.msg import CameraInfo, Image, TimeReference

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.stamps import StampMatcher
from hydranet_ros.ros.conversions import rotation_from, stamp_ns
from hydranet_ros.ros.extrinsics import FramesConfig
from hydranet_ros.ros.fusion_node import FusionNode
from hydranet_ros.ros.hydranet_node import HydraNetNode
from hydranet_ros.ros.stereo_vo_node import StereoVONode
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

# In a node numpy's warnings are lines on stderr.
pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("default::RuntimeWarning")]

T_b_c = FramesConfig().T_b_c
PERIOD, HOUR = 100_000_000, 3_600 * 10**9
START = 10 * HOUR
FIRST, FRAMES, FAULT_AT = 262, 28, 12  # the sharpest turn of the part of KITTI 09 that is here
REPLAY = {"input__reliability": "reliable", "input__depth": 100, "input__queue": 1000}
SIDES = ("left", "right")


@dataclass
class Shot:
    """What a stereo camera sends, and where it really was."""

    stamp: int
    left: np.ndarray
    right: np.ndarray
    T_w_c: np.ndarray


Shots = list[Shot]


@cache
def turn() -> tuple[Any, Shots]:
    """The stereo camera, and what it sees in a turn."""
    root = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("HYDRANET_DATA", root)) / "kitti" / "sequences" / "09"
    if folder.is_dir():
        source: Any = KittiFolder(folder)
        frames = list(islice(source, FIRST, FIRST + FRAMES))
        poses = source.T_w_c[FIRST : FIRST + FRAMES]
    else:
        source = Street(StreetConfig(frames=FRAMES))
        frames, poses = list(source), source.T_w_c
    shots = [
        Shot(START + i * PERIOD, frame.left, frame.right, T)
        for i, (frame, T) in enumerate(zip(frames, poses, strict=True))
    ]
    return source.camera, shots


def good() -> Shots:
    return [Shot(s.stamp, s.left, s.right, s.T_w_c) for s in turn()[1]]


# --- faults --------------------------------------------------------------------------------------


def repeated_image() -> Shots:
    """The camera sends its last image ten times, with new stamps."""
    shots = good()
    for shot in shots[FAULT_AT : FAULT_AT + 10]:
        shot.left, shot.right = shots[FAULT_AT - 1].left, shots[FAULT_AT - 1].right
    return shots


def images_swapped() -> Shots:
    """Two pairs come in the other order."""
    shots = good()
    shots[FAULT_AT], shots[FAULT_AT + 1] = shots[FAULT_AT + 1], shots[FAULT_AT]
    return shots


def image_stamp_an_hour_ahead() -> Shots:
    """One pair."""
    shots = good()
    shots[FAULT_AT].stamp += HOUR
    return shots


def camera_clock_set_back() -> Shots:
    """From then on all stamps are an hour earlier; the car drives on."""
    shots = good()
    for shot in shots[FAULT_AT:]:
        shot.stamp -= HOUR
    return shots


def blank_images() -> Shots:
    """Black, white, stripes and static noise."""
    shots = good()
    shape, rng = shots[0].left.shape, np.random.default_rng(0)
    black = np.zeros(shape, np.uint8)
    stripes = black + np.where(np.arange(shape[1]) // 8 % 2, 255, 0).astype(np.uint8)
    noise = rng.integers(0, 256, shape, dtype=np.uint8)
    blanks = [each for blank in (black, black + 255, stripes, noise) for each in [blank] * 2]
    for shot, blank in zip(shots[8:], blanks, strict=False):
        shot.left = shot.right = blank
    return shots


def right_image_one_frame_late() -> Shots:
    """With equal stamps."""
    shots = good()
    for shot, before in zip(shots[FAULT_AT:], good()[FAULT_AT - 1 :], strict=False):
        shot.right = before.right
    return shots


def standing_while_half_moves() -> Shots:
    """The right half of the image drives past a camera that stands."""
    shots, rng = good(), np.random.default_rng(0)
    middle, first = shots[0].left.shape[1] // 2, good()[0]
    for shot in shots:
        for side in SIDES:
            still = getattr(first, side).astype(np.float64) + rng.normal(0, 1, first.left.shape)
            seen = np.clip(still, 0, 255).astype(np.uint8)
            seen[:, middle:] = getattr(shot, side)[:, middle:]
            setattr(shot, side, seen)
        shot.T_w_c = first.T_w_c
    return shots


def images_dropped() -> Shots:
    """Three in ten, after a good start."""
    rng = np.random.default_rng(2)
    return [s for i, s in enumerate(good()) if i < 6 or i > FRAMES - 4 or rng.random() > 0.3]


def parameters_set_while_running() -> Shots:
    """The images are good."""
    return good()


FAULTS = (
    repeated_image,
    images_swapped,
    image_stamp_an_hour_ahead,
    camera_clock_set_back,
    blank_images,
    right_image_one_frame_late,
    standing_while_half_moves,
    images_dropped,
    parameters_set_while_running,
)


# --- the nodes -----------------------------------------------------------------------------------


class AllNodes(World):
    """The three nodes as the launch file joins them."""

    def __init__(self, row: Row) -> None:
        gyro = overrides(gyro__device="cpu", gyro__cameras="stereo", **REPLAY)
        fusion = overrides(fusion__odometry="own", fusion__max_wait_s=1.0)
        super().__init__(
            row,
            lambda: HydraNetNode(parameter_overrides=gyro),
            lambda: StereoVONode(parameter_overrides=overrides(**REPLAY)),
            lambda: FusionNode(parameter_overrides=fusion, cli_args=["--ros-args", *REMAPS]),
        )
        camera, shots = turn()
        shape = shots[0].left.shape
        self._infos = {
            self.bench.publisher(CameraInfo, f"{side}/camera_info"): camera_info(
                camera, shape, side == "right"
            )
            for side in SIDES
        }
        self._images = {s: self.bench.publisher(Image, f"{s}/image_rect") for s in SIDES}
        self._truth: dict[int, np.ndarray] = {}
        self._halves: StampMatcher[Any] = StampMatcher(2, 0)
        self.vo = self.hear(Odometry, "vo/odometry", lambda m: self._judge_pose(m, "VO"))
        self.fused = self.hear(Odometry, "fused/odometry", lambda m: self._judge_pose(m, "fused"))
        topic = "hydranet_node/relative_rotation"
        self.hear(TimeReference, f"{topic}/interval", lambda m: self._judge_half(1, m))
        self.hear(PoseWithCovarianceStamped, topic, lambda m: self._judge_half(0, m))

    def ready(self) -> bool:
        """Whether everybody has found everybody."""
        ours = [*self._infos, *self._images.values()]
        count = self.bench.node.count_publishers
        joined = count("fused/odometry") and count("hydranet_node/relative_rotation")
        return bool(joined) and all(p.get_subscription_count() == 2 for p in ours)

    def play(self, shots: Shots) -> Iterator[int]:
        """Send shot after shot, each when the nodes are done with the one before."""
        assert self.wait_for(self.ready)
        self.bench.spin(1.0)  # until the nodes have found each other
        self._truth = {shot.stamp: shot.T_w_c for shot in shots}
        for number, shot in enumerate(shots):
            for publisher, info in self._infos.items():
                self.publish(publisher, info)
            for side, publisher in self._images.items():
                self.publish(publisher, image(getattr(shot, side), shot.stamp))
            # Each calibration and each image comes to two nodes.
            self.wait_for(lambda: not self._busy(), 5.0)
            yield number

    def _busy(self) -> bool:
        looking = self.nodes[:2]
        waiting = any(int(n.workers[0].diagnostics()["waiting"]) for n in looking)
        return waiting or any(2 * n > self.received[t] for t, n in self.sent.items())

    def goes_on(self, last: int) -> None:
        """See that the last shot is fused, and judge everything."""
        wanted = stamp(last)
        if not self.wait_for(lambda: any(m.header.stamp == wanted for m in self.fused), 5.0):
            self.row.crash("the last pair is not fused")
        self.judge("")

    def _judge_pose(self, message: Odometry, name: str) -> None:
        T_w_c = self._truth.get(stamp_ns(message.header.stamp))
        assert T_w_c is not None, f"{name} has a stamp that nobody sent"
        first = next(iter(self._truth.values()))
        truth = T_b_c @ lie.se3_inverse(first) @ T_w_c @ lie.se3_inverse(T_b_c)
        judge_odometry(self.row, message, truth, name)

    def _judge_half(self, side: int, message: Any) -> None:
        match = self._halves.add(side, stamp_ns(message.header.stamp), message)
        if match is None:
            return
        found = rotation_from(*match)
        one, two = self._truth[found.stamp_1_ns], self._truth[found.stamp_2_ns]
        error = lie.so3_log(found.C_2_1 @ (two[:3, :3].T @ one[:3, :3]).T)
        if confident_and_wrong(error, found.Sigma_2_1, np.deg2rad(DEGREES)):
            self.row.wrong += 1
            seconds = (found.stamp_2_ns - START) * 1e-9
            degrees = np.rad2deg(np.linalg.norm(error))
            self.row.notes.append(f"gyro, {seconds:.1f} s: off by {degrees:.2f} deg")


def set_parameters(world: World) -> None:
    """Some of each node; none of them may touch the estimate."""
    settings = {
        "fusion_node": ("output.path.period_s", "fusion.gate_probability"),
        "stereo_vo_node": ("path.period_s", "vo.max_interval_s"),
        "hydranet_node": ("gyro.max_interval_s",),
    }
    for node, names in settings.items():
        for name in names:
            number = 1e-7 if "probability" in name else 2.0
            value = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=number)
            request = SetParameters.Request(parameters=[ParameterMessage(name=name, value=value)])
            (result,) = world.bench.call(SetParameters, f"{node}/set_parameters", request).results
            assert result.successful, (name, result.reason)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_camera_goes_wrong(report: Report, fault: Callable[[], Shots]) -> None:
    row, shots = report.row(fault.__name__.replace("_", " ")), fault()
    row.tried += 1
    with AllNodes(row) as world:
        for number in world.play(shots):
            if number == FAULT_AT and fault is parameters_set_while_running:
                set_parameters(world)
        world.goes_on(shots[-1].stamp)
    row.check()
