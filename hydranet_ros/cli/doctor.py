"""`hydranet doctor`: what is installed, what is wrong, and the line that mends it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hydranet_ros.cli.arguments import add_command, add_json, number
from hydranet_ros.errors import Finding, HydraNetError, printable, require

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands

EXAMPLES = """\
  hydranet doctor                               this machine: libraries, ROS 2, weights
  hydranet doctor --topics                      and the nodes that run now
  hydranet doctor --topics --seconds 20 --json
"""
STARTS_S = 60.0  # ROS 2 on a busy machine
LONGER = 3.0  # that the listener waits for those who are silent
MARKS = {"ok": "ok", "note": "note", "warning": "warning", "error": "WRONG"}


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser = add_command(
        commands,
        "doctor",
        run,
        "say what is installed, what is wrong, and what mends it",
        "Examine this machine: Python, libraries, ROS 2 and its middleware, shared memory for "
        "images, weights. With --topics also the system that runs: who publishes what, at which "
        "rate and with which stamps, calibrations, TF, covariances, the clock. The exit code is 1 "
        "where something is wrong that stops it.",
        EXAMPLES,
    )
    parser.add_argument("--topics", action="store_true", help="listen to the running system too")
    parser.add_argument(
        "--seconds",
        type=number(above=0.0, most=3600.0),
        default=5.0,
        metavar="S",
        help="listen so long, and longer where a publisher is silent (default: %(default)s)",
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="examine these weights (default: those that ship)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Examine, print; 1 where an error was found."""
    from hydranet_ros.cli.installation import has_errors, installed

    if options.topics:
        require("--topics", "rclpy")
    findings = list(installed(options.weights))
    topics: list[dict[str, Any]] = []
    if options.topics:
        heard = _listened(options.seconds)
        topics = heard["topics"]
        findings += [Finding(**each) for each in heard["findings"]]
    wrong = has_errors(findings)
    if options.json:
        figures: dict[str, Any] = {"ok": not wrong, "findings": [asdict(f) for f in findings]}
        print(json.dumps(figures | ({"topics": topics} if options.topics else {})))
    else:
        print(_text(findings, topics, options.topics))
    return int(wrong)


def _listened(seconds: float) -> dict[str, Any]:
    """What a process with ROS 2 has heard; it is ended in any case."""
    from hydranet_ros.cli.installation import child_environment

    command = [sys.executable, "-m", "hydranet_ros.ros.listening", f"{seconds:g}"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    try:
        out, errors = process.communicate(timeout=LONGER * seconds + STARTS_S)
    except subprocess.TimeoutExpired:
        raise HydraNetError(
            "--topics: ROS 2 does not answer: see the findings without --topics"
        ) from None
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        lines = [line for line in errors.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit code {process.returncode}"
        raise HydraNetError(
            f"--topics: cannot listen ({reason}): see the findings without --topics"
        )
    heard: dict[str, Any] = json.loads(out.splitlines()[-1])
    return heard


def _text(findings: list[Finding], topics: list[dict[str, Any]], listened: bool) -> str:
    """A line per finding, with its remedy below; then who publishes what."""
    lines = []
    for each in findings:
        lines.append(printable(f"{MARKS[each.level]:<8} {each.subject}: {each.text}"))
        if each.remedy:
            lines.append(printable(f"{'':<9}-> {each.remedy}"))
    if listened:
        lines += ["", f"{'topic':<44} {'Hz':>7} {'stamp':>9}  publishers"]
        for topic in topics:
            rate = "-" if topic["rate_hz"] is None else f"{topic['rate_hz']:.1f}"
            age = "-" if topic["offset_s"] is None else f"{topic['offset_s']:+.3f} s"
            who = ", ".join(topic["publishers"])
            lines.append(printable(f"{topic['name']:<44} {rate:>7} {age:>9}  {who}"))
        lines.append("stamp: how much earlier than its arrival a message is stamped")
    count = sum(each.level == "error" for each in findings)
    lines += ["", f"{count} wrong" if count else "nothing is wrong that stops it"]
    return "\n".join(lines)
