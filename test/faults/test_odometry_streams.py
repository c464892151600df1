"""Odometry and rotations of a car that go wrong as those of real robots do; the truth is known.

Each fault once with a real node, and with the fusion alone for many seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from faults.cars import INTERVAL, ODOMETRY, PERIOD, ROTATION, Car, FusionCore, FusionWorld, Stream
from faults.mutations import HOUR, SECOND
from faults.tally import Report
from rclpy.qos import QoSProfile
from ros.node_processes import stamp
from rosgraph_msgs.msg import Clock

from hydranet_ros.geometry import lie
from hydranet_ros.ros.conversions import pose_matrix, pose_message, stamp_ns, time_message
from hydranet_ros.ros.fusion_node import FusionNode

# In a node numpy's warnings are lines on stderr.
pytestmark = pytest.mark.filterwarnings("default::RuntimeWarning")

START = 5_000 * SECOND


# --- faults --------------------------------------------------------------------------------------


def later(message: Any, nanoseconds: int) -> Any:
    message.header.stamp = time_message(stamp_ns(message.header.stamp) + nanoseconds)
    return message


def changed(stream: Stream, change: Callable[[Any], None], topic: str = ODOMETRY) -> Stream:
    """The stream with every message of a topic changed."""
    for name, message in stream:
        if name == topic:
            change(message)
        yield name, message


def wrong_stamp(car: Car, by: int) -> Stream:
    """One message of odometry, or one rotation with its interval."""
    yield from car.drive(20)
    wrong = {ODOMETRY} if car.rng.random() < 0.5 else {ROTATION, INTERVAL}
    for topic, message in car.step():
        yield topic, later(message, by) if topic in wrong else message
    yield from car.drive(25)


def stamp_in_the_future(car: Car) -> Stream:
    """By half a second to five, or for ever."""
    ahead = (SECOND // 2, SECOND, 2 * SECOND, 5 * SECOND, 10**8 * SECOND)
    yield from wrong_stamp(car, int(car.rng.choice(ahead)))


def stamp_50_ms_back(car: Car) -> Stream:
    """Before the message before it, or before its own interval."""
    yield from wrong_stamp(car, -50_000_000 - int(car.rng.integers(2)) * PERIOD)


def stamp_an_hour_ahead(car: Car) -> Stream:
    """A lone one."""
    yield from wrong_stamp(car, HOUR)


def messages_swapped(car: Car) -> Stream:
    """Two steps come in the other order."""
    yield from car.drive(20)
    first, second = list(car.step()), list(car.step())
    yield from (*second, *first)
    yield from car.drive(25)


def clock_set_back(car: Car) -> Stream:
    """All stamps go back by an hour while the car drives on: where it is can only be lost."""
    yield from car.drive(20)
    car.set_clock_back(HOUR)
    yield from car.drive(25)


def outlier_in_odometry(car: Car) -> Stream:
    """A pose is two metres off to any side, once or from then on."""
    yield from car.drive(20)
    direction = car.rng.standard_normal(3)
    shift = np.eye(4)
    shift[:3, 3] = 2.0 * direction / np.linalg.norm(direction)

    def move(message: Any) -> None:
        message.pose.pose = pose_message(shift @ pose_matrix(message.pose.pose))

    yield from changed(car.drive(1 if car.rng.random() < 0.5 else 20), move)
    yield from car.drive(25) if car.rng.random() < 0.5 else changed(car.drive(25), move)


def outlier_in_rotation(car: Car) -> Stream:
    """One turn of ten degrees that was none."""
    yield from car.drive(20)
    axis = car.rng.standard_normal(3)
    turn = lie.se3_from(lie.so3_exp(np.deg2rad(10.0) * axis / np.linalg.norm(axis)), np.zeros(3))

    def spin(message: Any) -> None:
        message.pose.pose = pose_message(turn @ pose_matrix(message.pose.pose))

    yield from changed(car.drive(1), spin, ROTATION)
    yield from car.drive(25)


def rotation_over_too_long(car: Car) -> Stream:
    """A rotation of a tenth of a second says that it took most of one; odometry is out."""
    yield from car.drive(20)
    for topic, message in car.step(odometry=False):
        if topic == INTERVAL:
            message.time_ref = time_message(car.now - 8 * PERIOD)
        yield topic, message
    yield from car.drive(25)


def no_child_frame(car: Car) -> Stream:
    """At first, before any rotation."""

    def forget(message: Any) -> None:
        message.child_frame_id = ""

    yield from changed(car.drive(10, rotation=False), forget)
    car.now += PERIOD
    car.start_here()
    yield from car.begin()
    yield from car.drive(25)


def wheels_15_s_after_a_dead_gyro(car: Car) -> Stream:
    """Nobody says anything in between."""
    yield from car.drive(20, odometry=False)
    car.now += 15 * SECOND
    car.odometry_starts_here()
    yield from car.begin()
    yield from car.drive(25, rotation=False)


def gyro_15_s_after_dead_wheels(car: Car) -> Stream:
    """The other way round, and then the wheels come back."""
    yield from car.drive(20, rotation=False)
    car.now += 15 * SECOND
    yield from car.drive(25, odometry=False)
    yield from car.drive(5)


def wheels_3_s_after_the_gyro(car: Car) -> Stream:
    """They are a little later at every start."""
    yield from car.drive(30, odometry=False)
    car.odometry_starts_here()
    yield from car.begin()
    yield from car.drive(40)


def twist_only(car: Car) -> Stream:
    """The pose is never filled in."""

    def forget(message: Any) -> None:
        message.pose.pose = pose_message(np.eye(4))

    yield from changed(car.drive(60), forget)


def zero_covariances(car: Car) -> Stream:
    """Nobody filled them in."""

    def forget(message: Any) -> None:
        message.twist.covariance = message.pose.covariance = np.zeros(36)

    yield from changed(car.drive(60), forget)


def unknown_on_some_axes(car: Car) -> Stream:
    """1e6 on z, roll and pitch, as wheels say it."""

    def widen(message: Any) -> None:
        for axis in (2, 3, 4):
            message.twist.covariance[7 * axis] = 1e6

    yield from changed(car.drive(60), widen)


def slower_after_a_while(car: Car) -> Stream:
    """Wheels at 100 Hz go on at 10 Hz, and without the gyro."""
    for _ in range(20):
        for part in range(1, 10):
            yield ODOMETRY, car.odometry(car.now + part * PERIOD // 10)
        yield from car.step()
    yield from car.drive(40, rotation=False)


def thirty_percent_dropped(car: Car) -> Stream:
    """Of all topics."""
    for each in car.drive(100):
        if car.rng.random() > 0.3:
            yield each
    yield from car.drive(5)


FAULTS = (
    stamp_in_the_future,
    stamp_50_ms_back,
    stamp_an_hour_ahead,
    messages_swapped,
    clock_set_back,
    outlier_in_odometry,
    outlier_in_rotation,
    rotation_over_too_long,
    no_child_frame,
    wheels_15_s_after_a_dead_gyro,
    gyro_15_s_after_dead_wheels,
    wheels_3_s_after_the_gyro,
    twist_only,
    zero_covariances,
    unknown_on_some_axes,
    slower_after_a_while,
    thirty_percent_dropped,
)


def stream_of(fault: Callable[[Car], Stream], car: Car) -> Stream:
    if fault is not no_child_frame and not fault.__name__.startswith("wheels"):
        yield from car.begin()
    yield from fault(car)


def words(fault: Callable[[Car], Stream]) -> str:
    return fault.__name__.replace("_", " ")


# --- tests ---------------------------------------------------------------------------------------


def run_core(report: Report, fault: Callable[[Car], Stream], seeds: range) -> None:
    row = report.row(words(fault))
    for seed in seeds:
        car = Car(np.random.default_rng(seed), START)
        FusionCore(row).run(car, stream_of(fault, car), f"the fusion alone, seed {seed}")
    row.check()


@pytest.mark.parametrize("fault", FAULTS, ids=words)
def test_the_fusion_alone(report: Report, fault: Callable[[Car], Stream]) -> None:
    run_core(report, fault, range(2))


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS, ids=words)
def test_the_fusion_alone_many_times(report: Report, fault: Callable[[Car], Stream]) -> None:
    run_core(report, fault, range(2, 8))


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS, ids=words)
def test_the_node(report: Report, fault: Callable[[Car], Stream]) -> None:
    row = report.row(words(fault))
    row.tried += 1
    with FusionWorld(row) as world:
        car = Car(np.random.default_rng(1000), START)
        world.place(car, "fusion_node, seed 1000")
        world.send(stream_of(fault, car))
        world.goes_on()
    row.check()


def has_reached(node: FusionNode, nanoseconds: int) -> bool:
    return bool(node.get_clock().now().nanoseconds == nanoseconds)


@pytest.mark.faults
def test_simulated_time_jumps(report: Report) -> None:
    """Forward the pose goes on; back it begins anew, because the simulation does."""
    row = report.row("simulated time jumps")
    with FusionWorld(row, use_sim_time=True) as world:
        clock = world.bench.publisher(Clock, "/clock", QoSProfile(depth=10))
        assert world.wait_for(clock.get_subscription_count)
        now = START
        for number, jump in enumerate((SECOND, HOUR, -HOUR, 1000 * HOUR, -HOUR // 2)):
            row.tried += 1
            now += jump
            clock.publish(Clock(clock=stamp(now)))
            assert world.wait_for(partial(has_reached, world.node, now))
            if jump < 0 or number == 0:
                world.place(car := Car(np.random.default_rng(number), now), f"jump by {jump} ns")
                world.send(car.begin())
            else:
                car.now = now
            world.send(car.drive(20))
            world.goes_on()
    row.check()
