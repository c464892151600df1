"""What all nodes share: the managed life cycle, parameters, topics, diagnostics.

A node is configured (reads weights, opens topics) and activated (works); with `autostart` it does
both by itself. Bad input is warned about and counted by its reason: nothing that arrives over a
topic ends a node. A node says in `configure` what it takes in and gives out, in `reset` what it
forgets; inputs that work in a thread of their own are its `workers`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock, ClockChange, JumpThreshold, TimeJump
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import QoSProfile
from std_srvs.srv import Trigger

from hydranet_ros.errors import BadInput, HydraNetError
from hydranet_ros.ros.conversions import stamp_ns
from hydranet_ros.ros.diagnostics import (
    Productivity,
    SubscriptionMonitor,
    Throughput,
    WarningCounter,
    diagnostic_array,
    resident_mb,
)
from hydranet_ros.ros.parameters import Parameters
from hydranet_ros.ros.qos import LATCHED, OUTPUT, QualityConfig, greeting, publishers_of
from hydranet_ros.ros.sharing import SharedSubscription, SharedSubscriptions
from hydranet_ros.settings import Configuration, setting

RCLError = rclpy_implementation.RCLError
PERIOD_S = 1.0  # of diagnostics, and of looking for silent topics


def steady_clock() -> Clock:
    """A clock that no simulation stops."""
    return Clock(clock_type=ClockType.STEADY_TIME)


@dataclass(frozen=True)
class NodeConfig(Configuration):
    """What every node has."""

    autostart: bool = setting(True, "configure and activate without being told to", live=False)


Config = TypeVar("Config", bound=NodeConfig)


class Worker(Protocol):
    """An input with a thread of its own, which also resets the node between two frames."""

    def start(self) -> None:
        """Start the thread."""

    def stop(self) -> None:
        """End the thread, and forget what waits."""

    def request_reset(self, reason: str) -> None:
        """Let the thread reset the node before it goes on."""

    def diagnostics(self) -> dict[str, str]:
        """What diagnostics tell of the input."""

    def look_after_topics(self) -> list[str]:
        """Once a second: find the topics that are published; what is wrong with the input."""


class ManagedNode(LifecycleNode, Generic[Config]):
    """A lifecycle node with a configuration. Nodes of one process may share subscriptions."""

    def __init__(
        self,
        name: str,
        kind: type[Config],
        shared: SharedSubscriptions | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self.shared = shared or SharedSubscriptions()
        self.warn = WarningCounter(self.get_logger())
        self.throughput = Throughput()
        self.productivity = Productivity()
        self.configured = self.active = self.failed = False
        self.workers: list[Worker] = []
        self._settings = Parameters(self, kind, self._apply, lambda: self.configured)
        self._open_subscriptions: dict[SharedSubscription, SubscriptionMonitor] = {}
        self._open_publishers: list[Any] = []
        self._others_to_close: list[Callable[[], None]] = []
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", OUTPUT)
        self.create_service(Trigger, "~/reset", self._reset_service)
        # By the steady clock: simulated time may stand still, and then a node must say so.
        self.create_timer(PERIOD_S, self._look_after_itself, clock=steady_clock())
        back = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=True
        )
        self._jump = self.get_clock().create_jump_callback(back, post_callback=self._clock_jumped)

    @property
    def config(self) -> Config:
        """The parameters as they are now."""
        return self._settings.config

    # --- for the node to fill in -----------------------------------------------------------------

    def configure(self) -> None:
        """Open what is needed; a HydraNetError says why not."""

    def reset(self, reason: str) -> None:
        """Forget the state: activated, time went back, or somebody asks for it."""

    def apply(self, config: Config) -> None:
        """Apply parameters that were set while running."""

    def diagnostics(self) -> dict[str, str]:
        """What else diagnostics tell."""
        return {}

    def _apply(self, config: Config) -> None:
        if self.configured:
            self.apply(config)

    # --- topics ----------------------------------------------------------------------------------

    def subscribe(
        self,
        kind: type[Any],
        topic: str,
        callback: Callable[[Any], None],
        quality: QualityConfig,
        latched: bool = False,
    ) -> SharedSubscription:
        """Subscribe; while the node is not active messages are ignored.

        With `latched` messages that were published before come too, from those who keep them.
        """
        monitor = SubscriptionMonitor(self.resolve_topic_name(topic), quality, latched)
        leftovers = monitor.leftovers
        streams = quality.streams and not latched

        def receive(message: Any) -> None:
            monitor.receive()
            if quality.is_work:
                self.productivity.hear()
            header = getattr(message, "header", None) if streams else None
            if header is not None and leftovers.holds(stamp_ns(header.stamp)):
                self.warn("before the jump", f"{monitor.topic}: of before the clock jumped")
            elif self.active or latched:
                self.guard(callback, message, monitor.topic)

        profile = LATCHED if latched else quality.profile
        subscription = self.shared.subscribe(self, kind, topic, receive, profile)
        self._open_subscriptions[subscription] = monitor
        return subscription

    def unsubscribe(self, subscription: SharedSubscription) -> None:
        """Close a subscription before the others."""
        del self._open_subscriptions[subscription]
        subscription.close()

    def guard(self, callback: Callable[..., None], message: Any, topic: str) -> None:
        """Call back; bad input is warned about by the name of the topic."""
        try:
            callback(message)
        except BadInput as error:
            self.warn(f"{topic}: {error.kind}", f"{topic}: {error}")

    def advertise(
        self,
        kind: type[Any],
        topic: str,
        profile: QoSProfile = OUTPUT,
        greet: Callable[[], None] | None = None,
    ) -> Any:
        """A publisher that is silent while the node is not active; `greet` at each subscriber."""
        events = greeting(greet) if greet is not None else None
        publisher = self.create_lifecycle_publisher(kind, topic, profile, event_callbacks=events)
        self._open_publishers.append(publisher)
        return publisher

    def publish(self, publisher: Any, message: Any) -> None:
        """Publish; errors during shutdown are ignored, a full queue is warned about."""
        try:
            publisher.publish(message)
        except RCLError as error:
            if self.context.ok():
                self.warn("not published", f"{publisher.topic_name}: {error}".splitlines()[0])

    # --- life cycle ------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Configure; a known error is one line, and the node stays unconfigured."""
        try:
            self.configured = True
            self.configure()
        except (HydraNetError, ValueError) as error:
            self.get_logger().error(str(error))
            self._close()
            return TransitionCallbackReturn.FAILURE
        except Exception:
            # rclpy would swallow it without a word, and the node is unconfigured again.
            self.get_logger().fatal(traceback.format_exc())
            self._close()
            raise
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start to work."""
        for monitor in self._open_subscriptions.values():
            monitor.restart()
        self.productivity.restart()
        result = super().on_activate(state)
        self.reset("activated")
        for worker in self.workers:
            worker.start()
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
            for worker in self.workers:
                worker.stop()

    def when_closed(self, close: Callable[[], None]) -> None:
        """Close something else with the topics."""
        self._others_to_close.append(close)

    def _close(self) -> None:
        for close in self._others_to_close:
            close()
        for subscription in self._open_subscriptions:
            subscription.close()
        for publisher in self._open_publishers:
            self.destroy_lifecycle_publisher(publisher)
        self._open_subscriptions, self._open_publishers = {}, []
        self._others_to_close, self.workers = [], []
        self.configured = False

    def end(self) -> None:
        """Stop, however ROS ended, and leave no shared memory behind.

        The middleware gives its memory back when nothing of the node is left. rclpy forgets to
        destroy what keeps the state.
        """
        self._stop()
        self._close()
        self.destroy_node()
        self._state_machine.destroy_when_not_in_use()

    # --- looking after itself --------------------------------------------------------------------

    def request_reset(self, reason: str) -> None:
        """Reset now, or before the next frame where a worker has the state in its hands."""
        for worker in self.workers:
            worker.request_reset(reason)
        if not self.workers:
            self.reset(reason)

    def _reset_service(self, _: Trigger.Request, answer: Trigger.Response) -> Trigger.Response:
        answer.success = self.active
        answer.message = "state cleared, pose reset to identity" if self.active else "not active"
        if self.active:
            self.get_logger().info("reset on request")
            self.request_reset("on request")
        return answer

    def _clock_jumped(self, jump: TimeJump) -> None:
        if self.active:
            by = f"{jump.delta.nanoseconds * 1e-9:.3f} s"
            self.warn("clock jumped", f"the clock jumped by {by}: state is cleared")
            if jump.clock_change == ClockChange.ROS_TIME_NO_CHANGE:
                now_ns = self.get_clock().now().nanoseconds
                for monitor in self._open_subscriptions.values():
                    monitor.leftovers.jump(now_ns - jump.delta.nanoseconds, now_ns)
            self.request_reset("the clock jumped")

    def _look_after_itself(self) -> None:
        inputs = [text for worker in self.workers for text in worker.look_after_topics()]
        self.publish_diagnostics(inputs if self.active else [])

    def publish_diagnostics(self, inputs: list[str] | None = None) -> None:
        """Tell how it goes, and what is wrong."""
        memory = resident_mb()
        values = {
            **self.throughput.values(),
            **({} if memory is None else {"memory (MB)": f"{memory:.1f}"}),
            **dict(pair for worker in self.workers for pair in worker.diagnostics().items()),
            **(self.diagnostics() if self.configured else {}),
            **{
                f"listeners of {each.topic_name}": str(each.get_subscription_count())
                for each in self._open_publishers
            },
            **{kind: str(count) for kind, count in sorted(self.warn.counts.items())},
        }
        stamp, name = self.get_clock().now().to_msg(), self.get_fully_qualified_name()
        array = diagnostic_array(stamp, name, values, self._problems(inputs or []))
        self.publish(self._diagnostics, array)

    def _problems(self, inputs: list[str]) -> list[tuple[bytes, str]]:
        """By level: what is wrong now."""
        if self.failed:
            return [(DiagnosticStatus.ERROR, "the worker failed")]
        if not self.active:
            return [(DiagnosticStatus.WARN, "not active")]
        news = [f"{count} x {kind}" for kind, count in self.warn.news().items()]
        found = [(DiagnosticStatus.WARN, text) for text in self._silent_topics() + inputs + news]
        qualities = [monitor.quality for monitor in self._open_subscriptions.values()]
        patience_s = [quality.silence_s for quality in qualities if quality.is_work]
        idle = self.productivity.problem(max(patience_s)) if patience_s else None
        return found if idle is None else [idle, *found]

    def _silent_topics(self) -> list[str]:
        heard = {m.topic for m in self._open_subscriptions.values() if not m.silent}
        silent = {m.topic: s for s, m in self._open_subscriptions.items() if m.topic not in heard}
        for topic, subscription in silent.items():
            monitor = self._open_subscriptions[subscription]
            if monitor.is_due:
                self.get_logger().warning(
                    f"no message on {topic} for {monitor.quality.silence_s:g} s, "
                    f"subscribed with QoS {monitor.quality}: "
                    f"{publishers_of(self, topic, subscription.qos_profile)}"
                )
        return [f"no message on {topic}" for topic in silent]
