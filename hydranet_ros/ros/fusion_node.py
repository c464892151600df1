"""fusion_node: odometry of any source and rotations in, fused odometry out.

It needs no torch. How measurements wait for each other is told in partners.py, how odometry is
read in vo_reader.py, how the two are fused in hydranet_ros.fusion.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from sensor_msgs.msg import TimeReference
from std_srvs.srv import Trigger

from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.arrival import Measurement, Partners
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.sliding_window import FusedState, SlidingWindowFusion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.ros import conversions
from hydranet_ros.ros.conversions import stamp_ns
from hydranet_ros.geometry.estimates import change_frame
from hydranet_ros.ros.extrinsics import Frames, FramesConfig
from hydranet_ros.ros.lifecycle import ManagedNode, NodeConfig, steady_clock
from hydranet_ros.ros.odometry_output import FusedOutput, OutputConfig
from hydranet_ros.ros.qos import ReliableConfig
from hydranet_ros.ros.spin import leave, run
from hydranet_ros.ros.vo_reader import VOInputConfig, VOReader
from hydranet_ros.settings import section, setting

# After time went back in one source, what the other sends from before is ahead by more than this.
STALE_S = 10.0
MOST_UNPAIRED = 100
POLL_S = 0.05


@dataclass(frozen=True)
class FusionNodeConfig(NodeConfig):
    """The parameters of fusion_node."""

    max_wait_s: float = setting(0.5, "how long a measurement waits for its partner", 0.0, 3600.0)
    vo: VOInputConfig = section(VOInputConfig)
    rotation: ReliableConfig = section(ReliableConfig)
    frames: FramesConfig = section(FramesConfig)
    output: OutputConfig = section(OutputConfig)
    fusion: FusionConfig = section(FusionConfig)


class FusionNode(ManagedNode[FusionNodeConfig]):
    """The sliding window on topics."""

    def __init__(self, **options: Any) -> None:
        super().__init__("fusion_node", FusionNodeConfig, **options)
        self._camera_frame = ""
        self._reader = VOReader()
        self._intervals: dict[int, TimeReference] = {}
        self._rotations: dict[int, PoseWithCovarianceStamped] = {}
        self._newest: dict[str, int] = {}
        self._state: FusedState | None = None
        self._output: FusedOutput | None = None
        self._make(self.config)
        self.create_service(Trigger, "~/reset", self._reset)
        self.create_timer(POLL_S, self._fuse_ready, clock=steady_clock())

    def set_up(self) -> None:
        """Open the topics."""
        config = self.config
        self._frames = Frames(self, config.frames)
        self._output = FusedOutput(self, config.output, config.frames)
        self.listen(Odometry, "vo/odometry", self._hear_vo, config.vo)
        for kind, name, heard in (
            (PoseWithCovarianceStamped, "relative_rotation", self._hear_rotation),
            (TimeReference, "relative_rotation/interval", self._hear_interval),
        ):
            self.listen(kind, name, heard, config.rotation)

    def _make(self, config: FusionNodeConfig) -> None:
        tolerance = round(config.fusion.stamp_tolerance_s * 1e9)
        self._partners = Partners(tolerance, config.max_wait_s)
        self._fusion = SlidingWindowFusion(config.fusion)

    # --- clearing --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start at the origin."""
        self.forget("activated")

    def forget(self, reason: str) -> None:
        """Begin anew at the origin."""
        self._fusion.reset()
        self._partners.clear()
        self._reader.clear()
        self._intervals.clear()
        self._rotations.clear()
        self._newest.clear()
        self._state = None
        if self._output is not None:
            self._output.clear()

    def changed(self, config: FusionNodeConfig) -> None:
        """Go on from the present pose with new settings."""
        pose = None if self._state is None else self._state.T_w_c
        self._make(config)
        self._fusion = SlidingWindowFusion(config.fusion, pose)

    def _reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.forget("asked to")
        self.get_logger().info("reset: begins anew at the origin")
        response.success, response.message = True, "begins anew at the origin"
        return response

    # --- hearing ---------------------------------------------------------------------------------

    def _hear_vo(self, message: Odometry) -> None:
        stamp = stamp_ns(message.header.stamp)
        self._in_order("vo", stamp)
        try:
            motion = self._reader.read(message, self.config.vo)
            if motion is not None:
                T_c_b = lie.se3_inverse(self._camera_in(message.child_frame_id))
                T_2_1, Sigma = change_frame(T_c_b, motion.T_2_1, motion.Sigma_2_1)
                motion = RelativePose(T_2_1, Sigma, motion.stamp_1_ns, motion.stamp_2_ns)
                self._partners.add("vo", motion, time.monotonic())
        finally:
            # What it has no motion for, its partner need not wait for.
            self._partners.heard("vo", stamp)
            self._fuse_ready()

    def _camera_in(self, child: str) -> Array:
        return self._frames.camera_in(child, self._camera_frame)

    def _hear_rotation(self, message: PoseWithCovarianceStamped) -> None:
        self._rotations[stamp_ns(message.header.stamp)] = message
        self._pair_rotation(stamp_ns(message.header.stamp))

    def _hear_interval(self, message: TimeReference) -> None:
        self._intervals[stamp_ns(message.header.stamp)] = message
        self._pair_rotation(stamp_ns(message.header.stamp))

    def _pair_rotation(self, stamp: int) -> None:
        """A rotation counts once the stamps that it spans are known."""
        if stamp not in self._rotations or stamp not in self._intervals:
            for waiting in (self._rotations, self._intervals):
                if len(waiting) > MOST_UNPAIRED:
                    del waiting[next(iter(waiting))]
                    self.complain("no interval", "rotations or intervals come without the other")
            return
        message, interval = self._rotations.pop(stamp), self._intervals.pop(stamp)
        self._in_order("rotation", stamp)
        self._camera_frame = message.header.frame_id
        rotation = conversions.rotation_from(message, interval)
        self._partners.add("rotation", rotation, time.monotonic())
        self._fuse_ready()

    def _in_order(self, source: str, stamp: int) -> None:
        """Refuse what is out of order; clear everything where time went back."""
        last = self._newest.get(source)
        others = [s for name, s in self._newest.items() if name != source]
        if last is None and others and stamp - max(others) > STALE_S * 1e9:
            raise BadInput("stale", f"stamp {stamp} ns is far ahead: from before time went back")
        if last is not None and stamp == last:
            raise BadInput("equal stamps", f"two messages have stamp {stamp} ns")
        if last is not None and stamp < last:
            self.complain(
                "stamps went back",
                f"stamps of {source} went back from {last} to {stamp} ns: state is cleared",
            )
            self.forget("stamps went back")
        self._newest[source] = stamp

    # --- fusing ----------------------------------------------------------------------------------

    def _fuse_ready(self) -> None:
        if not self.active:
            return
        for group in self._partners.ready():
            try:
                self._fuse(group.measurements.values())
            except BadInput as error:
                self.complain(error.kind, str(error))
            self.pace.add(group.arrived)

    def _fuse(self, measurements: Iterable[Measurement]) -> None:
        # The pose first, as hydranet run does.
        ordered = sorted(measurements, key=lambda m: isinstance(m, RelativeRotation))
        try:
            state = self._fusion.update(*ordered)
        except (ValueError, np.linalg.LinAlgError) as error:
            raise BadInput("not fused", str(error)) from None
        for rejection in state.rejected:
            self.complain(
                f"{rejection.source} rejected", f"{rejection.source}: {rejection.reason}"
            )
        new = self._state is None or state.stamp_ns > self._state.stamp_ns
        if new and self._output is not None:
            base = self._frames.camera_in(self.config.frames.base_frame, self._camera_frame)
            stamps = self._fusion.window.stamps[-2:]
            dt = float(stamps[1] - stamps[0]) * 1e-9 if len(stamps) == 2 else None
            self._output.tell(state, base, dt)
        self._state = state

    def figures(self) -> dict[str, str]:
        """Consistency, bias, and how sure the pose is."""
        values = {"waiting": str(len(self._partners))}
        if self._state is not None and self._output is not None:
            values |= self._output.health(self._state)
        return values


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the node."""
    leave(run(FusionNode, arguments))


if __name__ == "__main__":
    main()
