"""A car whose pose is known at any time, and what its odometry and its gyro say of it.

What a car does, good or bad, is a stream of messages: it goes to a fusion node over topics, or to
the fusion itself, which takes a thousandth of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from faults.tally import Row
from faults.worlds import World, judge_odometry, judge_pose
from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from ros.in_process import overrides
from sensor_msgs.msg import TimeReference
from std_srvs.srv import Trigger

from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativeRotation, change_frame
from hydranet_ros.geometry.stamps import StampMatcher
from hydranet_ros.ros import conversions as c
from hydranet_ros.ros.extrinsics import FramesConfig
from hydranet_ros.ros.fusion_node import FusionNode

PERIOD = 100_000_000
T_b_c = FramesConfig().T_b_c
KINDS: dict[str, type[Any]] = {
    "vo/odometry": Odometry,
    "relative_rotation": PoseWithCovarianceStamped,
    "relative_rotation/interval": TimeReference,
}
ODOMETRY, ROTATION, INTERVAL = KINDS
Stream = Iterator[tuple[str, Any]]
# Of a motion over 0.1 s: the standard deviations of odometry, and of the gyro.
SIGMA = np.array([0.01, 0.005, 0.005, 3e-4, 3e-4, 5e-4])
SIGMA_PHI = 2e-3


class Car:
    """Drives at a constant twist in its own frame, beginning at the identity at `start`."""

    def __init__(self, rng: np.random.Generator, start: int) -> None:
        self.rng, self.start, self.now = rng, start, start
        speed, yaw = rng.uniform(2.0, 15.0), rng.uniform(-0.3, 0.3)
        self.twist = np.array([speed, 0.0, 0.0, 0.0, 0.01, yaw])
        self._told, self._told_at = np.eye(4), start  # what odometry thinks
        self._set_back, self._odometry_at = 0, start

    def truth(self, stamp: int) -> np.ndarray:
        """T_w_b. Turns count from the start, ways from where odometry began."""
        pose = self._pose(stamp)
        if stamp >= self._odometry_at or self._set_back:
            pose[:3, 3] -= self._pose(self._odometry_at)[:3, 3]
        return pose

    def _pose(self, stamp: int) -> np.ndarray:
        stamp += self._set_back if stamp < self.start else 0
        return np.array(lie.se3_exp(self.twist * (stamp - self.start) * 1e-9))

    def start_here(self) -> None:
        """Nothing that was said so far counts: the world begins here."""
        self.start = self._odometry_at = self.now

    def odometry_starts_here(self) -> None:
        """Nothing was known of the way so far."""
        self._odometry_at = self.now

    def set_clock_back(self, nanoseconds: int) -> None:
        """All stamps from now on are earlier; the car drives on."""
        self._set_back = nanoseconds
        self.now -= nanoseconds
        self._told_at -= nanoseconds

    # --- messages --------------------------------------------------------------------------------

    def odometry(self, stamp: int) -> Odometry:
        """The next message of a source that drifts as its covariance says."""
        seconds = max((stamp - self._told_at) * 1e-9, 1e-3)
        sigma = SIGMA * np.sqrt(seconds / 0.1)
        noise = lie.se3_exp(sigma * self.rng.standard_normal(6))
        step = lie.se3_inverse(self._pose(self._told_at)) @ self._pose(stamp)
        self._told, self._told_at = self._told @ step @ noise, stamp
        return c.odometry_message(
            stamp,
            ("odom", "base_link"),
            self._told,
            np.eye(6) * 1e-4,
            self.twist + sigma / seconds * self.rng.standard_normal(6),
            np.diag((sigma / seconds) ** 2),
        )

    def rotation(self, start: int, end: int) -> tuple[TimeReference, PoseWithCovarianceStamped]:
        """The turn of the camera between two stamps."""
        T_2_1 = lie.se3_inverse(self._pose(end)) @ self._pose(start)
        T_2_1, _ = change_frame(lie.se3_inverse(T_b_c), T_2_1, np.eye(6))
        noise = lie.so3_exp(SIGMA_PHI * self.rng.standard_normal(3))
        told = RelativeRotation(noise @ T_2_1[:3, :3], np.eye(3) * SIGMA_PHI**2, start, end)
        # The interval first: a rotation counts once its stamps are known.
        return c.interval_message(told, "camera_left"), c.rotation_message(told, "camera_left")

    # --- streams ---------------------------------------------------------------------------------

    def begin(self) -> Stream:
        """The first message of odometry: no motion leads to it."""
        yield ODOMETRY, self.odometry(self.now)

    def step(self, odometry: bool = True, rotation: bool = True) -> Stream:
        """A tenth of a second further."""
        self.now += PERIOD
        if odometry:
            yield ODOMETRY, self.odometry(self.now)
        if rotation:
            interval, turn = self.rotation(self.now - PERIOD, self.now)
            yield INTERVAL, interval
            yield ROTATION, turn

    def drive(self, steps: int, odometry: bool = True, rotation: bool = True) -> Stream:
        """Some steps with what is said of them."""
        for _ in range(steps):
            yield from self.step(odometry, rotation)


class FusionWorld(World):
    """A fusion node that hears of a car."""

    def __init__(self, row: Row, **parameters: Any) -> None:
        super().__init__(row, lambda: FusionNode(parameter_overrides=overrides(**parameters)))
        self.publishers = {n: self.bench.publisher(kind, n) for n, kind in KINDS.items()}
        self.fused = self.hear(Odometry, "fused/odometry", self._judge)
        self.car: Car | None = None
        self.note = ""

    @property
    def node(self) -> FusionNode:
        """The one under attack."""
        (node,) = self.nodes
        assert isinstance(node, FusionNode)
        return node

    def _judge(self, message: Odometry) -> None:
        assert self.car is not None
        truth = self.car.truth(c.stamp_ns(message.header.stamp))
        judge_odometry(self.row, message, truth, self.note)

    def ready(self) -> bool:
        """Whether the two have found each other."""
        heard = all(p.get_subscription_count() for p in self.publishers.values())
        return heard and self.bench.node.count_publishers("fused/odometry") == 1

    def place(self, car: Car, note: str) -> None:
        """Begin anew, with another car; `note` says how to see it again."""
        assert self.wait_for(self.ready)
        answer = self.bench.call(Trigger, "fusion_node/reset", Trigger.Request())
        assert answer.success
        self.judge(self.note)
        self.car, self.note = car, note

    def send(self, stream: Iterable[tuple[str, Any]]) -> None:
        """Publish what comes, and let the node keep up."""
        for topic, message in stream:
            self.publish(self.publishers[topic], message)

    def goes_on(self) -> bool:
        """Whether it is fused up to now; if not, that is counted like a crash."""
        assert self.car is not None
        self.drain()
        now = c.time_message(self.car.now)
        alive = self.wait_for(lambda: any(m.header.stamp == now for m in self.fused))
        if not alive and not self.crashed:
            self.row.crash(f"{self.note}: nothing is fused any more")
        self.judge(self.note)
        return alive


class FusionCore:
    """What FusionNode does with messages, without topics."""

    def __init__(self, row: Row, config: FusionConfig | None = None) -> None:
        self.row, self._now = row, 0.0
        self.fusion = Fusion(config, warn=lambda kind, text: None, clock=lambda: self._now)
        self._halves: StampMatcher[Any] = StampMatcher(2, 0)
        self.stamps: list[int] = []

    def run(self, car: Car, stream: Iterable[tuple[str, Any]], note: str) -> None:
        """Fuse a stream, and judge every state."""
        self.row.tried += 1
        for topic, message in stream:
            if isinstance(message, bytes):
                continue  # for the middleware to refuse
            self._now = car.now * 1e-9
            try:
                states = self._take(topic, message)
            except BadInput:
                continue
            for state in states:
                self._judge(car, state, note)
        if not self.stamps or self.stamps[-1] != car.now:
            self.row.crash(f"{note}: nothing is fused any more")

    def _take(self, topic: str, message: Any) -> list[FusedState]:
        if topic == ODOMETRY:
            if message.child_frame_id != "base_link":
                return self.fusion.lose_odometry(c.stamp_ns(message.header.stamp))
            return self.fusion.add_odometry(c.odometry_sample(message), T_b_c)
        side, stamp = int(topic == INTERVAL), c.stamp_ns(message.header.stamp)
        match = self._halves.add(side, stamp, message)
        return [] if match is None else self.fusion.add(c.rotation_from(*match))

    def _judge(self, car: Car, state: FusedState, note: str) -> None:
        self.stamps.append(state.stamp_ns)
        pose, Sigma = change_frame(T_b_c, state.T_w_c, state.Sigma_c_w)
        if not (np.isfinite(pose).all() and np.isfinite(Sigma).all()):
            self.row.non_finite += 1
            return
        covariance = c.fixed_axes(pose[:3, :3], Sigma)
        at = f"{note}, {(state.stamp_ns - car.start) * 1e-9:.3f} s"
        judge_pose(self.row, pose, covariance, car.truth(state.stamp_ns), at)
