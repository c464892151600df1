"""Find the rate at which the gyro drops its first frame beside wheels at 100 Hz.

    python benchmarks/ros_wheels.py [SOURCE] [--size 640x480] [--rates 30,40,50,60]

One camera and wheels: hydranet_node and fusion_node as processes. Frames, by default of the
simulated street, are sent from memory, to and fro as often as it takes; the wheels tell the way
between them. Printed are the frames that the gyro did not work on, wheel messages without fused
odometry, the latency from an image to its rotation and from a wheel message to fused odometry.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from itertools import islice

import numpy as np
from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from rclpy.qos import QoSProfile
from ros_nodes import ROTATION, Bench, Playback, add_options, running

from hydranet_ros.datasets.source import SimulatedStreet, Source, open_source
from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import T_BASE_OPTICAL, Frame
from hydranet_ros.geometry.lie import Array
from hydranet_ros.ros.conversions import image_message, odometry_message, stamp_ns, time_message

WHEELS_HZ = 100.0
VELOCITY_SIGMA = np.array([0.05, 0.05, 0.05, 0.02, 0.02, 0.02])  # m/s, rad/s
SECONDS = 8.0  # at each rate
LEAD, LEAD_HZ = 10, 5.0  # frames that are not counted


class WheelsBench(Bench):
    """A camera, wheels, and a subscriber of rotations and fused odometry in one node."""

    def __init__(self, source: Source, shape: tuple[int, int]) -> None:
        super().__init__(source, shape)
        deep = QoSProfile(depth=100)
        self._wheels = self.node.create_publisher(Odometry, "vo/odometry", deep)
        self.node.create_subscription(PoseWithCovarianceStamped, ROTATION, self._on_rotation, deep)
        self.node.create_timer(1.0 / WHEELS_HZ, self._roll)
        self.way: list[Array] = []
        """The pose of the base at every frame that is played."""
        self._began = self._rate_hz = 0.0
        self._first_ns = self._step_ns = 0
        self.rolled: dict[int, float] = {}
        self.answers_s: list[float] = []

    def _on_odometry(self, message: Odometry) -> None:
        sent = self.rolled.get(stamp_ns(message.header.stamp))
        if sent is not None:
            self.answers_s.append(time.monotonic() - sent)

    def _on_rotation(self, message: PoseWithCovarianceStamped) -> None:
        sent = self.playback.sent.get(stamp_ns(message.header.stamp))
        if sent is not None:
            self.playback.latencies_s.append(time.monotonic() - sent)

    def _roll(self) -> None:
        """Say where the wheels are, while frames are played."""
        place = (time.monotonic() - self._began) * self._rate_hz
        if not 0.0 < place < len(self.way) - 1:
            return
        begin, end = self.way[int(place) : int(place) + 2]
        motion = lie.se3_log(lie.se3_inverse(begin) @ end)
        pose = begin @ lie.se3_exp((place - int(place)) * motion)
        stamp = self._first_ns + round(place * self._step_ns)
        self.rolled[stamp] = time.monotonic()
        frames, unknown = ("odom", "base_link"), np.diag(VELOCITY_SIGMA**2)
        velocity = 1e9 * motion / self._step_ns
        self._wheels.publish(odometry_message(stamp, frames, pose, unknown, velocity, unknown))

    def wait_for_nodes(self, hearers: int, timeout_s: float = 180.0) -> None:
        """Wait until both subscribe to this node, and one to the other."""
        until = time.monotonic() + timeout_s
        while not (
            self._images[0].get_subscription_count()
            and self._infos[0].get_subscription_count()
            and self._wheels.get_subscription_count()
            and self._subscribers("hydranet_node", f"{ROTATION}/interval") > 0
        ):
            if time.monotonic() > until:
                raise HydraNetError(f"the nodes did not start in {timeout_s:g} s")
            self.spin(0.2)

    def roll_and_play(
        self, frames: list[Frame], way: list[Array], start_ns: int, step_ns: int, rate_hz: float
    ) -> Playback:
        """Publish frames at a rate, and wheels beside them."""
        self.rolled, self.answers_s, self.way = {}, [], way
        self._first_ns, self._step_ns, self._rate_hz = start_ns, step_ns, rate_hz
        self._began = time.monotonic()
        stamped = [(start_ns + i * step_ns, frame) for i, frame in enumerate(frames)]
        return self.play(stamped, rate_hz)

    def _publish(self, nanoseconds: int, frame: Frame) -> None:
        self.playback.sent[nanoseconds] = time.monotonic()
        info = self._calibration[0]
        info.header.stamp = time_message(nanoseconds)
        self._infos[0].publish(info)
        message = image_message(frame.left)
        message.header.stamp, message.header.frame_id = info.header.stamp, "camera_left"
        self._images[0].publish(message)


def to_and_fro(count: int, total: int) -> Iterable[int]:
    """0 to count - 1 and back, so many numbers in all."""
    turn = [*range(count), *range(count - 2, 0, -1)]
    return (turn[i % len(turn)] for i in range(total))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_options(parser, source="street")
    parser.add_argument("--size", default="640x480", help="of the simulated street's images")
    parser.add_argument("--rates", default="20,30,40,50,60", help="in Hz, rising")
    parser.set_defaults(wheels=True, cameras="mono", processes="three", frames=60)
    options = parser.parse_args()
    width, _, height = options.size.partition("x")
    street = options.source == "street"
    source: Source = (
        SimulatedStreet(options.frames, (int(width), int(height)))
        if street
        else open_source(options.source, max_frames=options.frames, cameras="mono")
    )
    if source.T_w_c is None:
        raise HydraNetError(f"{options.source} has no true poses for the wheels")
    frames = list(islice(source, options.frames))
    poses = [T @ lie.se3_inverse(T_BASE_OPTICAL) for T in source.T_w_c[: len(frames)]]
    poses = [lie.se3_inverse(poses[0]) @ pose for pose in poses]
    shape = frames[0].left.shape
    print(f"{shape[1]}x{shape[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("rate Hz  dropped  of  wheels unanswered  rotation p50 p95 ms  wheels p50 p95 ms")
    first = None
    with running(source, shape, options, WheelsBench) as bench:
        assert isinstance(bench, WheelsBench)
        for number, rate in enumerate(float(each) for each in options.rates.split(",")):
            start, step = (number + 1) * 1000 * 10**9, round(1e9 / rate)
            order = list(to_and_fro(len(frames), LEAD + round(SECONDS * rate)))
            played, way = [frames[k] for k in order], [poses[k] for k in order]
            # After the gap every node starts again.
            bench.roll_and_play(played[:LEAD], way[:LEAD], start, step, LEAD_HZ)
            before = bench.done("hydranet_node")
            start += LEAD * step
            playback = bench.roll_and_play(played[LEAD:], way[LEAD:], start, step, rate)
            count = len(order) - LEAD
            dropped = count - (bench.done("hydranet_node") - before)
            p50, p95 = playback.percentile_ms(50), playback.percentile_ms(95)
            wheels = 1e3 * np.percentile(bench.answers_s or [np.nan], [50, 95])
            silent = len(bench.rolled) - len(bench.answers_s)
            print(
                f"{rate:7.1f}  {dropped:7d}  {count:4d}  {silent:6d} of {len(bench.rolled):4d}"
                f"  {p50:13.1f} {p95:5.1f}  {wheels[0]:13.1f} {wheels[1]:4.1f}",
                flush=True,
            )
            if dropped and first is None:
                first = rate
                break
    print(f"first drop at {first:g} Hz" if first else "no drop at any of these rates")


if __name__ == "__main__":
    main()
