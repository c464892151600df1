"""Processes that end when we do."""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from hydranet_ros.errors import HydraNetError

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
