"""What /diagnostics says of the nodes: states in words, NIS, biases and scales as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hydranet_ros.view.frames import BIAS, SCALE

# What a node is called on the page.
SOURCES = {"stereo_vo_node": "odometry", "hydranet_node": "gyro", "fusion_node": "fusion"}
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
REASON = re.compile("[a-z_]+")
COUNTED = re.compile(r"(?P<times>\d+) x (?P<why>.+)")
FOUND = ("bias", "scale of", "stands", "sigma position", "sigma orientation", "calibration off")
OK_LEVEL = 0


class Diagnosis:
    """The newest of what the nodes say of themselves, about once a second."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.found: dict[str, str] = {}
        self.nis: dict[str, float] = {}
        self.numbers: dict[str, Mapping[str, float]] = {}

    def hear(self, statuses: Iterable[Any]) -> None:
        """Take the statuses of a message in; those of other nodes are left out."""
        for status in statuses:
            node = status.name.rsplit("/", 1)[-1].split(":")[0].strip()
            if node not in SOURCES:
                continue
            level = status.level[0] if isinstance(status.level, bytes) else int(status.level)
            rate = {each.key: each.value for each in status.values}.get("rate (Hz)")
            working = "ok" if rate is None else f"ok, {float(rate):.1f} Hz"
            self.states[SOURCES[node]] = working if level == OK_LEVEL else _said(status.message)
            if node == "fusion_node":
                self._hear_fusion({each.key: each.value for each in status.values})

    def _hear_fusion(self, values: Mapping[str, str]) -> None:
        self.found = {key: text for key, text in values.items() if key.startswith(FOUND)}
        self.nis = {
            key.removeprefix("NIS "): _numbers(text)[0]
            for key, text in values.items()
            if key.startswith("NIS ") and _numbers(text)
        }
        lines: dict[str, float] = {}
        for key, source in (("bias (deg/s)", "gyro"), ("bias of the IMU (deg/s)", "IMU")):
            found = _numbers(values.get(key, ""))[:3]
            lines |= {f"{source} {axis}": v for axis, v in zip("xyz", found, strict=False)}
        scales = {
            key.removeprefix("scale of ").removesuffix(" (%)"): _numbers(text)[0]
            for key, text in values.items()
            if key.startswith("scale of") and _numbers(text)
        }
        self.numbers = {name: each for name, each in ((BIAS, lines), (SCALE, scales)) if each}


def _said(message: str) -> str:
    """A warning as a person would say it, what was lost first: '3 x too_few_features'."""
    lost: list[str] = []
    other: list[str] = []
    for part in message.split("; "):
        counted = COUNTED.fullmatch(part)
        if counted is None:
            other.append(part)
            continue
        why, times = counted["why"], counted["times"]
        often = "once" if times == "1" else f"{times} times"
        named = REASON.fullmatch(why) is not None
        (lost if named else other).append(f"{why.replace('_', ' ') if named else why} ({often})")
    return "; ".join([*([f"lost: {', '.join(lost)}"] if lost else []), *other])


def _numbers(text: str) -> list[float]:
    return [float(each) for each in NUMBER.findall(text)]
