"""The nodes of the demonstration as processes that end when we do."""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hydranet_ros.errors import HydraNetError
from hydranet_ros.pipeline import OWN_SOURCES
from hydranet_ros.ros.environment import Value, node_command, private_environment

POLL_S = 0.05
# A node ends within two seconds of a signal.
PATIENCE_S = 5.0
# [ERROR] [1700000000.123456789] [node]:
LOG_PREFIX = re.compile(r"^\[\w+\] \[[\d.]+\] \[[^\]]*\]: ")


# Loaded here: between fork and exec only the call itself is safe.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Let Linux send SIGINT to this process when its parent was killed and could not."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


class Children:
    """Start processes with their output in LOGS/NAME.log; on leaving, end each of them alone.

    Each is in a session of its own: Ctrl-C reaches us, and we tell them in our order.
    """

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        self._logs, self._environment = logs, environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self.end_all()

    def start(self, name: str, command: list[str]) -> None:
        """Start a process."""
        with self.log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    def log(self, name: str) -> Path:
        """Where its output is."""
        return self._logs / f"{name}.log"

    def wait_for_line(self, name: str, line: str, timeout_s: float) -> None:
        """Wait until a process has said something."""
        until = time.monotonic() + timeout_s
        while line not in self.log(name).read_text(errors="replace").splitlines():
            self.check_all()
            if time.monotonic() > until:
                raise HydraNetError(
                    f"the nodes were not ready after {timeout_s:g} s: see {self._logs}"
                )
            time.sleep(POLL_S)

    def wait_for_end(self, name: str, timeout_s: float) -> None:
        """Wait until a process has ended well, while all others go on."""
        until = time.monotonic() + timeout_s
        while self._running[name].poll() is None:
            self.check_all()
            if time.monotonic() > until:
                raise HydraNetError(f"{name} did not end in {timeout_s:g} s: see {self.log(name)}")
            time.sleep(POLL_S)
        self._check(name, ended_well=True)
        del self._running[name]

    def check_all(self) -> None:
        """Nobody has ended who should be running."""
        for name in self._running:
            self._check(name, ended_well=False)

    def _check(self, name: str, ended_well: bool) -> None:
        code = self._running[name].poll()
        if code is None or (ended_well and code == 0):
            return
        lines = self.log(name).read_text(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        last = LOG_PREFIX.sub("", last.strip())
        raise HydraNetError(f"{name} ended with code {code}: {last} (see {self.log(name)})")

    def end_all(self) -> None:
        """Ask each to end and wait; kill who does not, or all when we are hurried."""
        try:
            self._ask_to_end()
        finally:
            for child in self._running.values():
                child.kill()
                child.wait()
            self._running.clear()

    def _ask_to_end(self) -> None:
        for child in self._running.values():
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        until = time.monotonic() + PATIENCE_S
        for child in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=max(0.0, until - time.monotonic()))


# --- the run: start the nodes, play to them, record them, end them -------------------------------

READY_S = 120.0
IDLE_S = 3.0
# Nothing is lost in a replay; how late it comes is shown.
INPUT: dict[str, Value] = {
    "input.reliability": "reliable",
    "input.depth": 1000,
    "input.queue": 1000,
}
# Our own odometry is believed as `hydranet run` does.
FUSION: dict[str, Value] = {
    "max_wait_s": 30.0,
    "fusion.vo_scale": OWN_SOURCES.vo_scale,
    "fusion.vo_floor_m": OWN_SOURCES.vo_floor_m,
    "fusion.vo_floor_deg": OWN_SOURCES.vo_floor_deg,
}
ROTATION = "hydranet_node/relative_rotation"
POSE, ODOMETRY = "geometry_msgs/msg/PoseWithCovarianceStamped", "nav_msgs/msg/Odometry"
RECORDED = {
    "left/camera_info": "sensor_msgs/msg/CameraInfo",
    "ground_truth/odometry": ODOMETRY,
    "vo/odometry": ODOMETRY,
    "fused/odometry": ODOMETRY,
    ROTATION: POSE,
    f"{ROTATION}/interval": "sensor_msgs/msg/TimeReference",
    f"{ROTATION}/aleatoric": POSE,
    f"{ROTATION}/epistemic": POSE,
    "imu_visual/data_raw": "sensor_msgs/msg/Imu",
    "/diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
}
AWAITED = ("vo/odometry", "fused/odometry", ROTATION)
# hydranet_node and stereo_vo_node.
LISTENERS = 2


@dataclass(frozen=True)
class Session:
    """What is asked for; `seconds` is how long the input is."""

    logs: Path
    rate: float
    seconds: float
    weights: str | None
    device: str
    mono: bool = False


def run_nodes(session: Session, played: Path, recorded: Path) -> None:
    """Play one bag through the nodes and record what they say into another."""
    lasting_s = session.seconds / session.rate
    with Children(session.logs, private_environment(session.logs)) as children:
        for name, command in commands(session, recorded).items():
            children.start(name, command)
        children.wait_for_line("recorder_node", "ready", READY_S)
        player: dict[str, Value] = {"source": str(played), "rate": session.rate}
        player["subscribers"] = LISTENERS
        children.start("player_node", node_command("player_node", player))
        children.wait_for_end("player_node", 60.0 + 2.0 * lasting_s)
        # It goes on for as long as results come.
        children.wait_for_end("recorder_node", 60.0 + 10.0 * lasting_s)


def commands(session: Session, recorded: Path) -> dict[str, list[str]]:
    """The command line of every node but the player."""
    return {
        "recorder_node": node_command("recorder_node", _recorder(recorded)),
        "fusion_node": node_command("fusion_node", FUSION, _rotations()),
        "stereo_vo_node": node_command("stereo_vo_node", INPUT),
        "hydranet_node": node_command("hydranet_node", _hydranet(session), _left()),
    }


def _recorder(recorded: Path) -> dict[str, Value]:
    topics = [f"{name} {kind}" for name, kind in RECORDED.items()]
    return {"out": str(recorded), "topics": topics, "awaited": AWAITED, "idle_s": IDLE_S}


def _hydranet(session: Session) -> dict[str, Value]:
    chosen: dict[str, Value] = {"stereo": not session.mono, "device": session.device}
    if session.mono:
        chosen["rectified"] = True
    if session.weights is not None:
        chosen["weights"] = session.weights
    return {**INPUT, **chosen}


def _left() -> dict[str, str]:
    return {"image": "left/image_rect", "camera_info": "left/camera_info"}


def _rotations() -> dict[str, str]:
    """The fusion takes the rotations of hydranet_node."""
    parts = ("", "/interval")
    return {f"relative_rotation{part}": f"{ROTATION}{part}" for part in parts}
