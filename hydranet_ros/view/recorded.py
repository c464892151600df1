"""Histories of what is recorded: the folder of a run, or a bag with the results of the nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from hydranet_ros.datasets.source import is_bag
from hydranet_ros.errors import FileError, require
from hydranet_ros.view.arrivals import ODOMETRY, PICTURE, ROTATION, TRUTH, Arrivals, camera_pose
from hydranet_ros.view.scene import History

VIEW_FILE = "view.npz"
FLOW, IMAGES = "/hydranet_node/flow/image", ("/left/image_rect", "/image")
TRUE_ODOMETRY, FUSED_ODOMETRY = "/ground_truth/odometry", "/fused/odometry"
DIAGNOSTICS = "/diagnostics"


def open_recorded(path: str | PathLike[str]) -> History:
    """The history of the folder of `hydranet run --out`, or of a rosbag2."""
    place = Path(path)
    if (place / VIEW_FILE).is_file():  # with pictures, which a bag of results may lack
        return History.load(place / VIEW_FILE)
    if is_bag(place):
        require("a rosbag2", "rosbags")
        return read_bag(place)
    if is_bag(place / "recorded"):  # of the demonstration
        return open_recorded(place / "recorded")
    if not place.exists():
        raise FileError(place, "does not exist: give the folder of a run, or a rosbag2")
    raise FileError(
        place, f"has no {VIEW_FILE} and is no rosbag2: make it with hydranet run SOURCE --out DIR"
    )


def read_bag(path: Path) -> History:
    """Scenes at the stamps of the fused odometry, or of the odometry, where it was not fused."""
    from hydranet_ros.evaluation.recorded import (
        CAMERA,
        FUSED,
        VO,
        network_rotations,
        read_recorded_run,
    )

    run = read_recorded_run(path)
    odometry = run.topic(VO) or _other_odometry(run.messages)
    results = run.topic(FUSED) or odometry
    if not results:
        raise FileError(
            path, f"has no {FUSED} nor {VO}: show it with hydranet run {path} --view, or record "
            "the nodes while it plays",
        )  # fmt: skip
    pictures = run.topic(FLOW) or next((run.topic(n) for n in IMAGES if run.topic(n)), {})
    history = History(live=False)
    arrivals = Arrivals(history)
    kept: dict[str, Mapping[int, Any]] = {
        TRUTH: {stamp: _pose(each) for stamp, each in run.topic(TRUE_ODOMETRY).items()},
        ODOMETRY: {stamp: _pose(each) for stamp, each in odometry.items()},
        ROTATION: network_rotations(run),
        PICTURE: pictures,
    }
    coming = sorted((stamp, name) for name, each in kept.items() for stamp in each)
    # Diagnostics have the time of the machine: they are in the order in which they arrived.
    heard = run.arrivals_ns.get(DIAGNOSTICS, {})
    told = deque(sorted(heard, key=lambda stamp: heard[stamp]))
    begin, end = (run.arrivals_ns.get(name, {}) for name in (CAMERA, FUSED))
    waiting = deque(coming)
    for stamp in sorted(results):
        while waiting and waiting[0][0] <= stamp:
            at, name = waiting.popleft()
            arrivals.keep(name, at, kept[name][at])
        while told and stamp in end and heard[told[0]] <= end[stamp]:
            arrivals.diagnosis.hear(run.topic(DIAGNOSTICS)[told.popleft()].status)
        fused = run.topic(FUSED).get(stamp)
        arrivals.show(
            stamp,
            _pose(fused),
            None if fused is None else np.reshape(fused.pose.covariance, (6, 6))[:3, :3],
            (end[stamp] - begin[stamp]) * 1e-6 if stamp in begin and stamp in end else None,
        )
    return history


def _other_odometry(messages: Mapping[str, Mapping[int, Any]]) -> Mapping[int, Any]:
    """What was fused, where it is not our own: wheels, or somebody's."""
    known = (FUSED_ODOMETRY, TRUE_ODOMETRY)
    for topic, each in sorted(messages.items()):
        kind = getattr(next(iter(each.values())), "__msgtype__", "")
        if topic not in known and kind == "nav_msgs/msg/Odometry":
            return each
    return {}


def _pose(odometry: Any | None) -> Any:
    from hydranet_ros.datasets.bag_messages import pose_of

    if odometry is None:
        return None
    return camera_pose(pose_of(odometry.pose.pose), odometry.child_frame_id)
