"""The nodes of the demonstration: processes that end when this one does."""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from hydranet_ros.errors import HydraNetError
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.gyro.visual_gyro import GyroConfig
from hydranet_ros.ros.environment import Value, node_command
from hydranet_ros.settings import Configuration, section, walk
from hydranet_ros.stereo_vo.config import StereoVOConfig

POLL_S = 0.05
# A node ends within two seconds of a signal, the command within three.
STOP_TIMEOUT_S = 2.0
CLEAN_END_S = 10.0
# [ERROR] [1700000000.123456789] [node]:
LOG_PREFIX = re.compile(r"^\[\w+\] \[[\d.]+\] \[[^\]]*\]: ")


# Loaded here: between fork and exec only the call itself is safe.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Let Linux send SIGINT to this process when its parent was killed and could not."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


class ProcessGroup:
    """Start processes with their output in LOGS/NAME.log; stop them all on leaving.

    Each is in a session of its own: Ctrl-C reaches this process alone, which then stops them.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs, self._environment = logs, environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        # Whoever is interrupted wants to leave; else nobody is killed: others would still see it.
        self.end_all(CLEAN_END_S if kind is None else STOP_TIMEOUT_S)

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

    def wait_for_line(self, name: str, start: str, timeout_s: float) -> str:
        """The line that begins so, as soon as a process has printed it."""
        until = time.monotonic() + timeout_s
        while True:
            for line in self.log(name).read_text(errors="replace").splitlines():
                if line.startswith(start):
                    return line
            self.check_all()
            if time.monotonic() > until:
                raise HydraNetError(
                    f"the nodes were not ready after {timeout_s:g} s: see {self._logs}"
                )
            time.sleep(POLL_S)

    def wait_for_end(
        self, name: str, timeout_s: float, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Wait until a process has ended with code 0, while all others go on."""
        until = time.monotonic() + timeout_s
        while self._running[name].poll() is None:
            self.check_all()
            if meanwhile is not None:
                meanwhile()
            if time.monotonic() > until:
                raise HydraNetError(f"{name} did not end in {timeout_s:g} s: see {self.log(name)}")
            time.sleep(POLL_S)
        self._check(name, ended_well=True)
        del self._running[name]

    def check_all(self) -> None:
        """Raise where a process has ended that should be running."""
        for name in self._running:
            self._check(name, ended_well=False)

    def _check(self, name: str, ended_well: bool) -> None:
        code = self._running[name].poll()
        if code is None or (ended_well and code == 0):
            return
        lines = self.log(name).read_text(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
        last = LOG_PREFIX.sub("", last.strip())
        raise HydraNetError(f"{name} ended with code {code}: {last} (see {self.log(name)})")

    def end_all(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        """SIGINT, wait, then SIGKILL; SIGKILL at once where this is interrupted."""
        try:
            self._interrupt(patience_s)
        finally:
            for child in self._running.values():
                child.kill()
                child.wait()
            self._running.clear()

    def _interrupt(self, patience_s: float) -> None:
        for child in self._running.values():
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        until = time.monotonic() + patience_s
        for child in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=max(0.0, until - time.monotonic()))


# --- the run: start the nodes, play to them, record them, stop them ------------------------------

READY_S = 120.0
IDLE_S = 3.0
# Nothing is lost in a replay; how late it comes is shown.
INPUT: dict[str, Value] = {
    "input.reliability": "reliable",
    "input.depth": 1000,
    "input.queue": 1000,
}


@dataclass(frozen=True)
class DemoConfig(Configuration):
    """The settings of the nodes: as of `hydranet run`, with both cameras."""

    vo: StereoVOConfig = section(StereoVOConfig)
    gyro: GyroConfig = section(GyroConfig, cameras="stereo")
    fusion: FusionConfig = section(FusionConfig, odometry="own", max_wait_s=30.0)


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
TRUTH = "ground_truth/odometry"
SEEN_BY_PAGE = (TRUTH, "left/camera_info")


@dataclass(frozen=True)
class Stage:
    """Nodes by name with their command lines, and the topics (name, type) to be recorded.

    Of `awaited` there is a publisher before anything is played, and so many `subscribers` of the
    images, and of other topics that are played.
    """

    nodes: Mapping[str, list[str]]
    topics: Mapping[str, str]
    awaited: tuple[str, ...]
    subscribers: int
    listeners: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """What is asked for; `seconds` is how long the input is."""

    logs: Path
    rate: float
    seconds: float
    stage: Stage
    environment: Mapping[str, str]
    watched: bool = False  # by the live page

    def listeners(self, played: Container[str]) -> dict[str, int]:
        """Who is to be there before anything is played: what comes earlier is lost to him."""
        wanted = dict(self.stage.listeners)
        if f"/{TRUTH}" in played:
            wanted.setdefault(TRUTH, 1)  # the recorder
        seen = SEEN_BY_PAGE if self.watched else ()
        return {topic: count + (topic in seen) for topic, count in wanted.items()}


def run_nodes(session: Session, played: Path, recorded: Path) -> None:
    """Play one bag through the nodes and record what they publish into another."""
    from hydranet_ros.datasets.bag_files import topics
    from hydranet_ros.evaluation.output import time_bar

    lasting_s, stage = session.seconds / session.rate, session.stage
    with ProcessGroup(session.logs, session.environment) as nodes:
        nodes.start("recorder_node", node_command("recorder_node", _recorder(stage, recorded)))
        for name, command in stage.nodes.items():
            nodes.start(name, command)
        nodes.wait_for_line("recorder_node", "ready", READY_S)
        player: dict[str, Value] = {"source": str(played), "rate": session.rate}
        player["subscribers"] = stage.subscribers
        if listeners := session.listeners(topics(played)):
            player["listeners"] = [f"{topic} {n}" for topic, n in listeners.items()]
        nodes.start("player_node", node_command("player_node", player))
        with time_bar(lasting_s, "play") as tick:
            nodes.wait_for_end("player_node", 60.0 + 2.0 * lasting_s, tick)
        # It goes on for as long as results come.
        nodes.wait_for_end("recorder_node", 60.0 + 10.0 * lasting_s)


# --- the live page beside them ------------------------------------------------------------------

PAGE = "view: "  # view_node prints it before where its page is


class LivePage:
    """view_node in the domain of the nodes, for as long as they come and go."""

    def __init__(self, logs: Path, environment: Mapping[str, str], place: tuple[str, int]) -> None:
        self.url = ""
        self._folder = logs / "shown"
        self._group = ProcessGroup(logs, environment)
        self._place = place

    def __enter__(self) -> LivePage:
        host, port = self._place
        self._folder.mkdir(parents=True, exist_ok=True)
        given: dict[str, Value] = {"host": host, "port": port, "out": str(self._folder)}
        self._group.start("view_node", node_command("view_node", given))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self._group.__exit__(kind, value, trace)

    def said(self) -> str:
        """Where it is and who can see it, once it is there."""
        line = self._group.wait_for_line("view_node", PAGE, READY_S).removeprefix(PAGE)
        self.url = line.partition(",")[0]
        return line

    def shown(self, number: int) -> Path:
        """The file of a drive, from 1 on; it is there when the page has ended."""
        return self._folder / f"{number}.npz"


# --- nodes ---------------------------------------------------------------------------------------


def stereo_stage(config: DemoConfig) -> Stage:
    """Stereo odometry, the gyro and their fusion."""
    vo = parameters("vo", config.vo) | INPUT
    gyro = parameters("gyro", config.gyro) | INPUT | {"input.rectified": True}
    nodes = {
        "fusion_node": node_command(
            "fusion_node", parameters("fusion", config.fusion), rotations()
        ),
        "stereo_vo_node": node_command("stereo_vo_node", vo),
        "hydranet_node": node_command("hydranet_node", gyro, _left()),
    }
    # Both nodes, and the recorder.
    right = 1 + (config.gyro.cameras == "stereo")
    listeners = {"left/camera_info": 3, "right/image_rect": right, "right/camera_info": right}
    return Stage(nodes, RECORDED, AWAITED, 2, listeners)


def parameters(name: str, config: Configuration) -> dict[str, Value]:
    """The settings of a section that differ from their defaults, as parameters of a node."""
    defaults = {each.name: each.default for each in walk(type(config))}
    return {
        f"{name}.{each.name}": each.default
        for each in walk(config)
        if each.default != defaults[each.name]
    }


def _recorder(stage: Stage, recorded: Path) -> dict[str, Value]:
    topics = [f"{name} {kind}" for name, kind in stage.topics.items()]
    awaited = stage.awaited
    return {"out": str(recorded), "topics": topics, "awaited": awaited, "idle_s": IDLE_S}


def _left() -> dict[str, str]:
    return {"image": "left/image_rect", "camera_info": "left/camera_info"}


def rotations() -> dict[str, str]:
    """The fusion takes the rotations of hydranet_node."""
    parts = ("", "/interval")
    return {f"relative_rotation{part}": f"{ROTATION}{part}" for part in parts}
