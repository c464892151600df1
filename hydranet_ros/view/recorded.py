"""Histories of what is recorded: the folder of a run, or a bag with the results of the nodes."""

from __future__ import annotations

from bisect import bisect_right
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from hydranet_ros.datasets.source import is_bag
from hydranet_ros.errors import FileError, require
from hydranet_ros.geometry.camera import T_BASE_OPTICAL
from hydranet_ros.view.frames import LATENCY, Known, SceneMaker
from hydranet_ros.view.scene import History
from hydranet_ros.view.words import Diagnosis

VIEW_FILE = "view.npz"
FLOW, IMAGES = "/hydranet_node/flow/image", ("/left/image_rect", "/image")
TRUTH = "/ground_truth/odometry"
DIAGNOSTICS = "/diagnostics"


def open_recorded(path: str | PathLike[str]) -> History:
    """The history of the folder of `hydranet run --out`, or of a rosbag2."""
    place = Path(path)
    if is_bag(place):
        require("a rosbag2", "rosbags")
        return read_bag(place)
    if (place / VIEW_FILE).is_file():
        return History.load(place / VIEW_FILE)
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
        ROTATION,
        VO,
        network_rotations,
        read_recorded_run,
    )

    run = read_recorded_run(path)
    results = run.topic(FUSED) or run.topic(VO)
    if not results:
        raise FileError(
            path, f"has no {FUSED} nor {VO}: show it with hydranet run {path} --view, or record "
            "the nodes while it plays",
        )  # fmt: skip
    rotations = network_rotations(run) if run.topic(ROTATION) else {}
    pictures = run.topic(FLOW) or next((run.topic(n) for n in IMAGES if run.topic(n)), {})
    told = sorted(run.topic(DIAGNOSTICS).items())
    moments = [stamp for stamp, _ in told]
    diagnosis, heard, scenes = Diagnosis(), 0, SceneMaker()
    history = History(live=False)
    begin, end = (run.arrivals_ns.get(name, {}) for name in (CAMERA, FUSED))
    for stamp in sorted(results):
        until = bisect_right(moments, stamp)
        for _, array in told[heard:until]:
            diagnosis.hear(array.status)
        heard = until
        numbers = dict(diagnosis.numbers)
        if stamp in begin and stamp in end:
            numbers[LATENCY] = {"image to fused": (end[stamp] - begin[stamp]) * 1e-6}
        fused = run.topic(FUSED).get(stamp)
        known = Known(
            stamp,
            _pose(run.topic(TRUTH).get(stamp)),
            _pose(run.topic(VO).get(stamp)),
            _pose(fused),
            None if fused is None else np.reshape(fused.pose.covariance, (6, 6))[:3, :3],
            rotations.get(stamp),
            diagnosis.nis,
            numbers,
            dict(diagnosis.states),
            dict(diagnosis.found),
        )
        image = pictures.get(stamp)
        history.add(scenes.make(known), None if image is None else pixels(image))
    return history


def _pose(odometry: Any | None) -> Any:
    from hydranet_ros.datasets.bag_messages import pose_of

    return None if odometry is None else pose_of(odometry.pose.pose) @ T_BASE_OPTICAL


def pixels(message: Any) -> Any:
    """Of an image message with 8 bits: grey, or BGR; None for others."""
    channels = {"mono8": 1, "bgr8": 3, "rgb8": 3}.get(message.encoding)
    if channels is None:
        return None
    rows = np.asarray(message.data, dtype=np.uint8).reshape(message.height, message.step)
    picture = rows[:, : message.width * channels].reshape(message.height, message.width, channels)
    picture = picture[..., ::-1] if message.encoding == "rgb8" else picture
    return np.ascontiguousarray(picture if channels == 3 else picture[..., 0])
