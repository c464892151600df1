"""What all nodes share: the managed life cycle, listening, publishing, diagnostics.

A node is configured (reads weights, opens topics) and activated (works); with `autostart` it does
both by itself. A complaint about input is logged once per kind and counted; nothing that arrives
over a topic ends a node.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, JumpThreshold, TimeJump
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

from hydranet_ros.errors import BadInput, HydraNetError
from hydranet_ros.ros.diagnostics import (
    Complaints,
    Ear,
    Pace,
    diagnostic_array,
    resident_mb,
    status,
)
from hydranet_ros.ros.parameters import Parameters
from hydranet_ros.ros.qos import OUTPUT, QualityConfig, publishers_of
from hydranet_ros.settings import Configuration, setting

RCLError = rclpy_implementation.RCLError
PERIOD_S = 1.0  # of diagnostics, and of looking for silence


def steady_clock() -> Clock:
    """A clock that no simulation stops."""
    return Clock(clock_type=ClockType.STEADY_TIME)


@dataclass(frozen=True)
class NodeConfig(Configuration):
    """What every node has."""

    autostart: bool = setting(True, "configure and activate without being told to", live=False)


Config = TypeVar("Config", bound=NodeConfig)


class ManagedNode(LifecycleNode, Generic[Config]):
    """A lifecycle node with a configuration; see the methods under 'for the node to fill in'."""

    def __init__(self, name: str, kind: type[Config], **options: Any) -> None:
        super().__init__(name, **options)
        self.complain = Complaints(self.get_logger())
        self.pace = Pace()
        self.active = self.failed = False
        self.settings = Parameters(self, kind, self.changed)
        self.ears: list[Ear] = []
        self._open_subscriptions: list[Subscription[Any]] = []
        self._open_publishers: list[Any] = []
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", OUTPUT)
        # By the steady clock: simulated time may stand still, and then a node must say so.
        self.create_timer(PERIOD_S, self._look_after, clock=steady_clock())
        back = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=True
        )
        self._jump = self.get_clock().create_jump_callback(back, post_callback=self._clock_jumped)

    @property
    def config(self) -> Config:
        """The parameters as they are now."""
        return self.settings.config

    # --- for the node to fill in -----------------------------------------------------------------

    def set_up(self) -> None:
        """Open what is needed; a HydraNetError says why not."""

    def begin(self) -> None:
        """Start to work."""

    def pause(self) -> None:
        """Stop working, and forget what was underway."""

    def forget(self, reason: str) -> None:
        """Clear the state: time went back, or somebody asks for it."""

    def changed(self, config: Config) -> None:
        """Take in parameters that were set while running."""

    def figures(self) -> dict[str, str]:
        """What else diagnostics tell."""
        return {}

    # --- topics ----------------------------------------------------------------------------------

    def listen(
        self, kind: type[Any], topic: str, heard: Callable[[Any], None], quality: QualityConfig
    ) -> None:
        """Subscribe; while the node is not active messages are ignored."""
        ear = Ear(self.resolve_topic_name(topic), quality)

        def callback(message: Any) -> None:
            ear.hear()
            if self.active:
                self.guarded(ear.topic, lambda: heard(message))

        self.ears.append(ear)
        self._open_subscriptions.append(
            self.create_subscription(kind, topic, callback, quality.profile)
        )

    def guarded(self, subject: str, work: Callable[[], None]) -> None:
        """Do it; bad data is complained about, and dropped."""
        try:
            work()
        except BadInput as error:
            self.complain(f"{subject}: {error.kind}", f"{subject}: {error}")

    def speak(self, kind: type[Any], topic: str, profile: QoSProfile = OUTPUT) -> Any:
        """A publisher that is silent while the node is not active."""
        publisher = self.create_lifecycle_publisher(kind, topic, profile)
        self._open_publishers.append(publisher)
        return publisher

    def publish(self, publisher: Any, message: Any) -> None:
        """Publish; a full queue or the end of ROS is no reason to end in a traceback."""
        try:
            publisher.publish(message)
        except RCLError as error:
            if self.context.ok():
                self.complain("not published", f"{publisher.topic_name}: {error}".splitlines()[0])

    # --- life cycle ------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Set up; a known error is one line, and the node stays unconfigured."""
        try:
            self.set_up()
        except (HydraNetError, ValueError) as error:
            self.get_logger().error(str(error))
            self._close()
            return TransitionCallbackReturn.FAILURE
        except Exception:
            # rclpy would swallow it without a word.
            self.get_logger().fatal(traceback.format_exc())
            raise
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start to work."""
        for ear in self.ears:
            ear.hear()
            ear.count = 0
        result = super().on_activate(state)
        self.begin()
        self.active = True
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop working."""
        self._stop()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close what was opened."""
        self._close()
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop and close."""
        self._stop()
        self._close()
        return super().on_shutdown(state)

    def _stop(self) -> None:
        if self.active:
            self.active = False
            self.pause()

    def _close(self) -> None:
        for subscription in self._open_subscriptions:
            self.destroy_subscription(subscription)
        for publisher in self._open_publishers:
            self.destroy_lifecycle_publisher(publisher)
        self._open_subscriptions, self._open_publishers, self.ears = [], [], []

    def end(self) -> None:
        """Stop, however ROS ended."""
        self._stop()
        self.destroy_node()

    # --- looking after itself --------------------------------------------------------------------

    def _clock_jumped(self, jump: TimeJump) -> None:
        if self.active:
            by = f"{jump.delta.nanoseconds * 1e-9:.3f} s"
            self.complain("clock jumped", f"the clock jumped by {by}: state is cleared")
            self.forget("the clock jumped")

    def _look_after(self) -> None:
        worries = self._silences() if self.active else ["not active"]
        worries += [f"{count} x {kind}" for kind, count in self.complain.news().items()]
        memory = resident_mb()
        values = {
            **self.pace.values(),
            **({} if memory is None else {"memory (MB)": f"{memory:.1f}"}),
            **self.figures(),
            **{
                f"listeners of {each.topic_name}": str(each.get_subscription_count())
                for each in self._open_publishers
            },
            **{kind: str(count) for kind, count in sorted(self.complain.counts.items())},
        }
        message = diagnostic_array(
            self.get_clock().now().to_msg(),
            status(self.get_fully_qualified_name(), values, worries),
        )
        self.publish(self._diagnostics, message)

    def _silences(self) -> list[str]:
        silent = [ear for ear in self.ears if ear.silent]
        for ear in silent:
            if not ear.told:
                ear.told = True
                self.get_logger().warning(
                    f"heard nothing on {ear.topic} for {ear.quality.silence_s:g} s, waiting with "
                    f"QoS {ear.quality}: {publishers_of(self, ear.topic)}"
                )
        return [f"silence on {ear.topic}" for ear in silent]
