"""What is wrong with topics, told from plain facts of them. No rclpy here.

`listening` gathers the facts on a running system; this file judges them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hydranet_ros.datasets.sensor_messages import ENCODINGS
from hydranet_ros.errors import Finding
from hydranet_ros.ros.environment import missing_profile

IMAGE, COMPRESSED, CAMERA_INFO, IMU = (
    f"sensor_msgs/msg/{name}" for name in ("Image", "CompressedImage", "CameraInfo", "Imu")
)
ODOMETRY, POSE = "nav_msgs/msg/Odometry", "geometry_msgs/msg/PoseWithCovarianceStamped"
CLOCK, TRANSFORMS = "rosgraph_msgs/msg/Clock", "tf2_msgs/msg/TFMessage"
SENSORS = (IMAGE, COMPRESSED, CAMERA_INFO, IMU, ODOMETRY)

SLOW_HZ = 5.0  # images that are further apart overlap too little
FAR_S = 1.0  # between a stamp and now, and between the stamps of two sources
PAIRED_NS, LEAST_PAIRED = 10_000_000, 0.5  # left and right of a pair, and how many of them meet
UNKNOWN = 1e3  # variances from here on say that a source is lost, or does not know
IN_G = 0.5, 2.0  # an acceleration of gravity in g; in m/s^2 it is 9.81
FAST_RAD_S = 40.0  # a rate that no robot has: deg/s
# Outputs of ours that come only where somebody sends what they are made of.
QUIET = ("/flow/image", "imu/data_unbiased", "imu_visual/data_raw")
SIDES = ("left", "right"), ("cam0", "cam1"), ("infra1", "infra2"), ("image_0", "image_1")


@dataclass
class Topic:
    """What was heard of a topic.

    `offset_s` is the median of now less the stamp, `backwards` how often a stamp was not after
    the one before. `last` holds fields of the last message, by the kind of it.
    """

    name: str
    kind: str
    publishers: list[str] = field(default_factory=list)
    count: int = 0
    rate_hz: float | None = None
    offset_s: float | None = None
    backwards: int = 0
    zero_stamps: int = 0
    frame: str = ""
    stamps_ns: list[int] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)


@dataclass
class System:
    """Topics by name, and what else a graph of nodes tells.

    `unheard` are topics of sensors that a node listens to and nobody publishes. `mismatches` are
    publisher, subscriber, topic and reason. `edges` are parent and child frames of TF. `told` is
    what nodes warn of in /diagnostics, by their name.
    """

    topics: dict[str, Topic] = field(default_factory=dict)
    sim_time: dict[str, bool] = field(default_factory=dict)
    unheard: list[tuple[str, str, str]] = field(default_factory=list)
    mismatches: list[tuple[str, str, str, str]] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    told: dict[str, tuple[bool, str]] = field(default_factory=dict)
    middleware: str = ""

    def of_kind(self, *kinds: str) -> list[Topic]:
        """The topics of some types, by name."""
        return [each for _, each in sorted(self.topics.items()) if each.kind in kinds]


def examine(system: System) -> list[Finding]:
    """Everything that is wrong, the worst first."""
    found = [
        *_silence(system),
        *_clock(system),
        *_stamps(system),
        *_cameras(system),
        *_pairs(system),
        *_odometry(system),
        *_imus(system),
        *_frames(system),
        *_graph(system),
    ]
    return sorted(found, key=lambda each: ("error", "warning", "note", "ok").index(each.level))


# --- messages and their stamps -------------------------------------------------------------------


def _silence(system: System) -> Iterator[Finding]:
    if not system.topics:
        yield Finding(
            "warning",
            "topics",
            "nobody publishes anything here",
            "start the robot, with the same ROS_DOMAIN_ID and RMW_IMPLEMENTATION as here",
        )
    for topic in system.of_kind(*SENSORS):
        if topic.count == 0 and not topic.name.endswith(QUIET):
            yield Finding(
                "warning",
                topic.name,
                f"nothing was heard of {_names(topic.publishers)}",
                "see whether it is active, and for large images config/fastdds.xml",
            )
        elif len(topic.publishers) > 1:
            yield Finding(
                "warning",
                topic.name,
                f"has several publishers: {_names(topic.publishers)}",
                "end or rename one of them",
            )
        slow = topic.rate_hz is not None and topic.rate_hz < SLOW_HZ
        if topic.kind in (IMAGE, COMPRESSED) and slow:
            yield Finding(
                "warning",
                topic.name,
                f"comes at {topic.rate_hz:.1f} Hz: images a long time apart hardly overlap",
                "let the camera send at least 10 images per second",
            )


def _clock(system: System) -> Iterator[Finding]:
    clocks = [each for each in system.of_kind(CLOCK) if each.count]
    simulated = sorted(name for name, used in system.sim_time.items() if used)
    real = sorted(name for name, used in system.sim_time.items() if not used)
    if simulated and not clocks:
        yield Finding(
            "error",
            "/clock",
            f"{_names(simulated)} uses use_sim_time, and nobody publishes /clock: its time stands",
            f"ros2 param set {simulated[0]} use_sim_time false, or play with a clock",
        )
    if clocks and real:
        yield Finding(
            "note",
            "/clock",
            f"is published, and {_names(real)} does not use it",
            f"ros2 param set {real[0]} use_sim_time true",
        )


def _stamps(system: System) -> Iterator[Finding]:
    stamped = [each for each in system.of_kind(*SENSORS, POSE) if each.offset_s is not None]
    for topic in system.of_kind(*SENSORS, POSE):
        if 2 * topic.zero_stamps > topic.count:  # one may be the start of a simulation
            yield Finding(
                "error",
                topic.name,
                f"{topic.zero_stamps} messages have stamp 0",
                "let the driver set header.stamp to when it measured",
            )
        elif topic.backwards:
            yield Finding(
                "warning",
                topic.name,
                f"{topic.backwards} stamps of {topic.count} are not after the one before",
                "let one driver publish, with the time of each measurement",
            )
    far = [each for each in stamped if abs(each.offset_s or 0.0) > FAR_S]
    for topic in far:
        age = topic.offset_s or 0.0
        yield Finding(
            "warning",
            topic.name,
            f"stamps are {abs(age):.3g} s {'before' if age > 0.0 else 'after'} now",
            "set both clocks (chrony), or use_sim_time with the /clock of a replay",
        )
    if far and len(far) < len(stamped):
        first = min(stamped, key=lambda each: each.offset_s or 0.0)
        last = max(stamped, key=lambda each: each.offset_s or 0.0)
        apart = (last.offset_s or 0.0) - (first.offset_s or 0.0)
        yield Finding(
            "error",
            last.name,
            f"its stamps are {apart:.3g} s before those of {first.name}: they never meet",
            "set the clocks of both machines (chrony)",
        )


# --- cameras -------------------------------------------------------------------------------------


def _cameras(system: System) -> Iterator[Finding]:
    infos = {each.name: each for each in system.of_kind(CAMERA_INFO) if each.count}
    for info in infos.values():
        yield from _calibration(info)
    for image in system.of_kind(IMAGE):
        if not image.count:
            continue
        encoding = image.last["encoding"]
        if encoding not in ENCODINGS and not image.name.endswith("/compressedDepth"):
            yield Finding(
                "error",
                image.name,
                f"has encoding {encoding!r}, which is not known here",
                "let the driver send mono8 or bgr8",
            )
        advice = missing_profile(image.last["bytes"], system.middleware)
        if advice is not None:
            problem, _, remedy = advice.partition(". ")
            yield Finding("warning", image.name, problem, remedy)
    for image in system.of_kind(IMAGE, COMPRESSED):
        if image.count:
            yield from _beside(image, infos)


def _calibration(info: Topic) -> Iterator[Finding]:
    k, p = info.last["k"], info.last["p"]
    numbers = [*k, *p, *info.last["d"]]
    calibrate = "calibrate it: ros2 run camera_calibration cameracalibrator"
    if not all(math.isfinite(each) for each in numbers):
        yield Finding("error", info.name, "has numbers that are not finite", calibrate)
    elif not k[0] and not p[0]:
        yield Finding("error", info.name, "is zero: the camera is not calibrated", calibrate)
    elif k[0] < 0.0 or p[0] < 0.0 or not info.last["width"] or not info.last["height"]:
        size = f"{info.last['width']}x{info.last['height']}"
        yield Finding("error", info.name, f"has focal length {k[0]:g} and size {size}", calibrate)
    else:
        yield from _odd_centre(info, calibrate)


def _odd_centre(info: Topic, calibrate: str) -> Iterator[Finding]:
    k, width, height = info.last["k"], info.last["width"], info.last["height"]
    if k[0] and not (0.0 < k[2] < width and 0.0 < k[5] < height):
        yield Finding(
            "warning",
            info.name,
            f"has its principal point at {k[2]:g}, {k[5]:g}, outside of {width}x{height} pixels",
            calibrate,
        )


def _beside(image: Topic, infos: Mapping[str, Topic]) -> Iterator[Finding]:
    """The calibration of an image, where image_pipeline has it."""
    if image.name.endswith(("/flow/image", "/compressedDepth")):
        return
    raw = image.name.removesuffix("/compressed")
    name = raw.rpartition("/")[0] + "/camera_info"
    info = infos.get(name)
    if info is None:
        yield Finding(
            "warning",
            image.name,
            f"has no calibration: nothing was heard on {name}",
            "publish camera_info there, or remap camera_info of the node",
        )
        return
    if image.kind == IMAGE and not info.last["part"]:
        sizes = [(each.last["width"], each.last["height"]) for each in (image, info)]
        if sizes[0] != sizes[1]:
            (width, height), (other, rows) = sizes
            yield Finding(
                "error",
                name,
                f"is of {other}x{rows} pixels, and images of {image.name} have {width}x{height}",
                "calibrate with the size that is sent, or resize both (image_proc)",
            )


def _pairs(system: System) -> Iterator[Finding]:
    """Left and right: stamps that meet, and a baseline."""
    known = {each.name: each for each in system.of_kind(IMAGE, COMPRESSED, CAMERA_INFO)}
    for name, left in known.items():
        right = next(
            (
                known[name.replace(a, b)]
                for a, b in SIDES
                if a in name and name.replace(a, b) in known
            ),
            None,
        )
        if right is None or not left.count or not right.count:
            continue
        if left.kind == CAMERA_INFO:
            yield from _baseline(right, left)
        elif _paired(left.stamps_ns, right.stamps_ns) < LEAST_PAIRED:
            yield Finding(
                "error",
                right.name,
                f"its stamps do not meet those of {left.name} within 10 ms: there are no pairs",
                "trigger both cameras together, or raise input.sync_tolerance_s",
            )


def _baseline(right: Topic, left: Topic) -> Iterator[Finding]:
    p, other = right.last["p"], left.last["p"]
    if p[0] and other[0] and not (p[3] or p[7] or other[3] or other[7]):
        yield Finding(
            "error",
            right.name,
            "has no baseline: P[3] is 0 in both cameras of the pair",
            "calibrate the pair together: cameracalibrator with left and right",
        )


def _paired(first: Sequence[int], second: Sequence[int]) -> float:
    """The share of the shorter list that has a partner in the time both were heard."""
    begin, end = max(first[0], second[0]), min(first[-1], second[-1])
    common = [[each for each in stamps if begin <= each <= end] for stamps in (first, second)]
    fewer, more = sorted(common, key=len)
    if not fewer:
        return 0.0
    other = np.array(more)
    return float(np.mean([np.abs(other - each).min() <= PAIRED_NS for each in fewer]))


# --- odometry and IMU ----------------------------------------------------------------------------


def _odometry(system: System) -> Iterator[Finding]:
    for topic in system.of_kind(ODOMETRY, POSE):
        if not topic.count or "ground_truth" in topic.name:
            continue
        if abs(float(np.linalg.norm(topic.last["orientation"])) - 1.0) > 1e-2:
            yield Finding(
                "error",
                topic.name,
                "has orientations that are no unit quaternions",
                "let its source set pose.orientation; w = 1 where it is not known",
            )
        if topic.kind == ODOMETRY and not topic.last["child"]:
            yield Finding(
                "error",
                topic.name,
                "has no child_frame_id: nobody knows what moves",
                "set child_frame_id, say to base_link",
            )
        # A rotation alone has no position, and odometry is fused by its twist.
        which = "twist" if topic.kind == ODOMETRY else "pose"
        yield from covariance_findings(topic.name, which, topic.last[which])


def covariance_findings(name: str, what: str, covariance: Sequence[float]) -> Iterator[Finding]:
    """A covariance (36,) that cannot be, or that nobody has set."""
    Sigma = np.array(covariance, dtype=np.float64).reshape(6, 6)
    broken = "let its source send variances in m^2 and rad^2, per axis"
    if not np.isfinite(Sigma).all():
        yield Finding("error", name, f"covariance of its {what} is not finite", broken)
    elif not Sigma.any():
        yield Finding(
            "warning",
            name,
            f"covariance of its {what} is zero: the fusion takes odometry.sigma_m, sigma_deg",
            "set these to what the source is good for, or let it send a covariance",
        )
    elif (np.diagonal(Sigma) < 0.0).any():
        yield Finding("error", name, f"covariance of its {what} has negative variances", broken)
    elif not np.allclose(Sigma, Sigma.T, rtol=1e-3, atol=1e-12):
        yield Finding("error", name, f"covariance of its {what} is not symmetric", broken)
    elif np.linalg.eigvalsh(Sigma)[0] < -1e-6 * np.diagonal(Sigma).max():
        yield Finding("error", name, f"covariance of its {what} has a negative eigenvalue", broken)
    elif (np.diagonal(Sigma) >= UNKNOWN).all():
        yield Finding(
            "warning",
            name,
            f"covariance of its {what} says lost: all variances are above {UNKNOWN:g}",
            "see why its source is lost",
        )


def _imus(system: System) -> Iterator[Finding]:
    for topic in system.of_kind(IMU):
        if not topic.count:
            continue
        acceleration, rate = topic.last["acceleration"], topic.last["rate"]
        if not all(math.isfinite(each) for each in (*acceleration, *rate)):
            yield Finding("error", topic.name, "is not finite", "see its driver")
            continue
        force = float(np.linalg.norm(acceleration))
        if IN_G[0] < force < IN_G[1]:
            yield Finding(
                "error",
                topic.name,
                f"accelerations of {force:.2f} are in g, and not in m/s^2",
                "multiply them by 9.80665 in the driver",
            )
        if float(np.linalg.norm(rate)) > FAST_RAD_S:
            yield Finding(
                "error",
                topic.name,
                f"rates of {float(np.linalg.norm(rate)):.0f} are in deg/s, and not in rad/s",
                "let the driver send rad/s",
            )


# --- frames and the graph ------------------------------------------------------------------------


def _frames(system: System) -> Iterator[Finding]:
    """TF: a tree, that connects what moves with what sees."""
    parents: dict[str, set[str]] = {}
    for parent, child in system.edges:
        parents.setdefault(child, set()).add(parent)
    for child, several in sorted(parents.items()):
        if len(several) > 1:
            yield Finding(
                "error",
                "/tf",
                f"{child} has two parents, {_names(sorted(several))}: TF is no tree",
                "let one node publish it: output.publish_tf false here, or off in the other",
            )
    moving = {each.last["child"] for each in system.of_kind(ODOMETRY) if each.count}
    seeing = {each.frame for each in system.of_kind(CAMERA_INFO) if each.count}
    groups = connected(system.edges)
    for base in sorted(moving - {""}):
        for camera in sorted(seeing - {"", base}):
            if groups and not any({base, camera} <= group for group in groups):
                yield Finding(
                    "warning",
                    "/tf",
                    f"does not connect {base} with {camera}",
                    f"ros2 run tf2_ros static_transform_publisher --frame-id {base} "
                    f"--child-frame-id {camera}, or frames.base_from_camera",
                )


def connected(edges: Sequence[tuple[str, str]]) -> list[set[str]]:
    """The frames that TF connects, in groups."""
    groups: list[set[str]] = []
    for edge in edges:
        touched = [group for group in groups if group & set(edge)]
        groups = [group for group in groups if group not in touched]
        groups.append(set(edge).union(*touched))
    return groups


def _graph(system: System) -> Iterator[Finding]:
    for topic, kind, node in system.unheard:
        same = [each.name for each in system.of_kind(kind) if not each.name.endswith(QUIET)]
        near = f"; {_names(same)} has that type" if same else ""
        remedy = f"remap it: {topic.lstrip('/')}:={same[0]}" if same else "start who publishes it"
        yield Finding(
            "warning", topic, f"{node} listens to it, and nobody publishes it{near}", remedy
        )
    for publisher, subscriber, topic, reason in system.mismatches:
        yield Finding(
            "error",
            topic,
            f"{subscriber} does not hear {publisher}: {reason}",
            f"set the reliability or durability of {subscriber} to that of {publisher}",
        )
    for name, (stops, text) in sorted(system.told.items()):
        yield Finding(
            "error" if stops else "warning", name, f"says: {text}", "see docs/recipes/warnings.md"
        )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "anybody"
