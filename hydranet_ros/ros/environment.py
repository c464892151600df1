"""What surrounds a node: its files, command line, launch arguments, DDS settings. No rclpy here.

Nothing that has to be installed is imported before it is used: `hydranet doctor` reads this too.

Fast DDS and large images: a message that finds the shared memory full is lost. A best-effort
reader never gets it. A reliable one gets it again when the publisher next announces what it has
sent, which for small messages, such as a camera_info, is every three seconds.
"""

from __future__ import annotations

import difflib
import json
import os
import random
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import isfinite
from pathlib import Path

from hydranet_ros.errors import FileError, HydraNetError

PACKAGE = "hydranet_ros"
PROFILE = "config/fastdds.xml"
SEGMENT = 512 * 1024  # bytes of shared memory by default
# Where Fast DDS 3 looks for its profiles, and where version 2 did; 3 warns of the old name.
VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
FIRST_RCLPY_WITH_3 = 9  # Kilted
# The ROS wheels set it when they have prepared a process; who inherits it is not prepared.
WHEELS_GUARD = "_ROS_WHEELS_BOOTSTRAP_COMPLETE"
# The process that has started a node, where that shall end with it.
LAUNCHED = "HYDRANET_LAUNCHED"
# DDS: participant p of domain d has UDP ports 7400 + 250 d + 10 + 2 p and the next one. Domains
# above 101 reach into the ports that Linux gives away.
DOMAINS = range(1, 102)
PARTICIPANTS = 8

Value = str | int | float | bool | Sequence[str] | Sequence[float]


def share_file(name: str) -> Path:
    """The path of, say, `config/fastdds.xml`, installed or in the source tree."""
    source = Path(__file__).resolve().parents[2]  # an editable install, or the source tree itself
    prefixes = [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix]
    shares = [Path(prefix) / "share" / PACKAGE for prefix in prefixes if prefix]
    for folder in (source, *shares):
        if (folder / name).is_file():
            return folder / name
    raise FileError(name, f"is not installed with {PACKAGE}: install it again")


# --- Fast DDS ------------------------------------------------------------------------------------


def fast_dds_variable() -> str:
    """The environment variable that the Fast DDS of this ROS 2 reads."""
    new, old = VARIABLES
    return new if int(version("rclpy").split(".")[0]) >= FIRST_RCLPY_WITH_3 else old


def fast_dds_profile() -> dict[str, str]:
    """The environment for processes with large images; what the user has chosen stays."""
    if any(name in os.environ for name in VARIABLES):
        return {}
    return {fast_dds_variable(): str(share_file(PROFILE))}


def missing_profile(message_bytes: int, middleware: str) -> str | None:
    """Advice, where images of so many bytes outgrow the shared memory of Fast DDS."""
    if 2 * message_bytes <= SEGMENT or "fastrtps" not in middleware:
        return None
    if any(Path(os.environ.get(name, "/nowhere")).is_file() for name in VARIABLES):
        return None
    return (
        f"images of {message_bytes // 1024} kB outgrow the 512 kB of shared memory that Fast DDS "
        "has by default: best-effort inputs lose some, reliable ones may wait for seconds. In the "
        f"camera's process and here, export {fast_dds_variable()}={share_file(PROFILE)}"
    )


# --- nodes as processes --------------------------------------------------------------------------


def node_command(
    name: str, parameters: Mapping[str, Value], remaps: Mapping[str, str] | None = None
) -> list[str]:
    """The command line of a node of this package, in this Python."""
    words = [sys.executable, "-m", f"hydranet_ros.ros.{name}", "--ros-args"]
    for key, value in parameters.items():
        words += ["-p", f"{key}:={_yaml(value)}"]
    for old, new in (remaps or {}).items():
        words += ["-r", f"{old}:={new}"]
    return words


def together_parameters(nodes: Mapping[str, Mapping[str, Value]], namespace: str = "") -> str:
    """A file of parameters for hydranet_all and its nodes.

    `-p NODE:KEY:=VALUE` is for a node in the root alone. Full names win over the wildcards of a
    file that was given before. As JSON every text is quoted.
    """
    values: dict[str, Mapping[str, Value]] = {"hydranet_all": {"nodes": list(nodes)}, **nodes}
    space = f"/{namespace.strip('/')}/".replace("//", "/")
    return json.dumps({f"{space}{name}": {"ros__parameters": v} for name, v in values.items()})


def _yaml(value: Value) -> str:
    """As `--ros-args -p` reads it; a text is quoted, lest 09 be a number."""
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted}'"
    if isinstance(value, Sequence):
        return f"[{', '.join(_yaml(each) for each in value)}]"
    return str(value).lower()


# --- launch arguments ----------------------------------------------------------------------------

# Of version 0.1, and what to write instead.
RENAMED_ARGUMENTS = {
    "mono": "cameras:=mono",
    "vo": "odometry:=own, visual or wheels",
    "vo_topic": "odom:=TOPIC",
}
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
TOPIC_NAME = re.compile(r"[~/]?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")


class LaunchArguments:
    """The arguments of a launch file as texts, checked where they are read. Empty: not given."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name: text.strip() for name, text in given.items()}

    def text(self, name: str) -> str:
        """As it is."""
        return self._given.get(name, "")

    def flag(self, name: str) -> bool | None:
        """True or false, in any of the usual ways to write it."""
        text = self.text(name).lower()
        if text and text not in TRUE + FALSE:
            raise self.wrong(name, "must be true or false")
        return text in TRUE if text else None

    def number(self, name: str, low: float = 0.0, positive: bool = False) -> float | None:
        """A finite number."""
        if not self.text(name):
            return None
        try:
            value = float(self.text(name))
        except ValueError:
            value = float("nan")
        if not isfinite(value) or value < low or (positive and value == 0.0):
            raise self.wrong(name, f"must be a number {'above' if positive else 'from'} {low:g}")
        return value

    def choice(self, name: str, *choices: str) -> str:
        """One of some words."""
        text = self.text(name)
        if text and text not in choices:
            raise self.wrong(name, f"must be one of {', '.join(choices)}")
        return text

    def file(self, name: str, or_folder: bool = False) -> str:
        """A file that is there."""
        text = self.text(name)
        if text and not (Path(text).is_file() or (or_folder and Path(text).is_dir())):
            raise self.wrong(name, "there is no such file")
        return text

    def device(self, name: str) -> str:
        """Where the network runs."""
        text = self.text(name)
        if text and not re.fullmatch(r"auto|numpy|cpu|cuda(:\d+)?", text):
            raise self.wrong(name, "must be auto, numpy, cpu, cuda or cuda:N")
        return text

    def topic(self, name: str) -> str:
        """The name of a topic or namespace; a slash at its end changes nothing."""
        text = self.text(name)
        bare = text.rstrip("/") if text.strip("/") else ""
        if bare and not TOPIC_NAME.fullmatch(bare):
            raise self.wrong(name, "is not the name of a topic: letters, digits, _ and /")
        return bare

    def extrinsics(self, name: str) -> dict[str, Value]:
        """Parameters of the camera's mounting: `tf`, or x y z qx qy qz qw."""
        text = self.text(name)
        if not text:
            return {}
        if text == "tf":
            return {"frames.extrinsics": "tf"}
        try:
            numbers = [float(word) for word in re.split(r"[\s,]+", text.strip("[] "))]
        except ValueError:
            numbers = []
        if len(numbers) != 7 or abs(sum(q * q for q in numbers[3:]) - 1.0) > 1e-3:
            raise self.wrong(name, "must be tf, or x y z qx qy qz qw with a unit quaternion")
        return {"frames.extrinsics": "parameter", "frames.base_from_camera": numbers}

    def flag_or_auto(self, name: str) -> bool | str | None:
        """True, false, or `auto`."""
        return "auto" if self.text(name).lower() == "auto" else self.flag(name)

    def source(self, name: str) -> str:
        """What a player plays."""
        from hydranet_ros.datasets.source import STREET

        return self.text(name) if self.text(name) == STREET else self.file(name, or_folder=True)

    def refuse_unknown(self, words: Sequence[str], known: Sequence[str]) -> None:
        """Hold a command line's `name:=value` to the names that there are."""
        for name in (word.partition(":=")[0] for word in words if ":=" in word):
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f": did you mean {near[0]}?" if near else ""
                if name in RENAMED_ARGUMENTS:
                    hint = f": it is {RENAMED_ARGUMENTS[name]} since 1.0"
                raise HydraNetError(f"argument {name} is not known{hint}")

    def wrong(self, name: str, reason: str) -> HydraNetError:
        """The error that names an argument."""
        return HydraNetError(f"{name}:={self.text(name)}: {reason}")


@dataclass(frozen=True)
class CameraRemaps:
    """The topics of the cameras; a player waits for the `subscribers` of the image `played`."""

    remaps: list[tuple[str, str]]
    played: str
    subscribers: int
    rectified: bool = False


def camera_topics(args: LaunchArguments, cameras: str, pair: bool, bag: str) -> CameraRemaps:
    """Names by the arguments, else by what a bag has, else the nodes' own.

    `pair`: somebody looks at both cameras, also where the gyro looks at one. With `cameras` rgbd
    the gyro looks at the image, and the odometry at its depth as well.
    """
    from hydranet_ros.datasets.source import is_bag

    if cameras == "rgbd":
        return _depth_topics(args, pair, bag)
    sides = ("left", "right")
    names = {f"{side}/image_rect": args.topic(f"{side}_image") for side in sides}
    names |= {f"{side}/camera_info": args.topic(f"{side}_camera_info") for side in sides}
    names |= {name: args.topic(name) for name in ("image", "camera_info")}
    for side in sides:
        if space := args.topic(side):
            names[f"{side}/image_rect"] = names[f"{side}/image_rect"] or f"{space}/image_rect"
    if bag and not any(names.values()) and is_bag(bag):
        names |= _topics_in_bag(bag, "stereo" if pair else cameras)
    left = names["left/image_rect"] or "left/image_rect"
    if cameras == "mono" and not names["image"] and (pair or bag):
        names["image"] = left
        names["camera_info"] = names["camera_info"] or names["left/camera_info"]
    played = names["image"] if cameras == "mono" else left
    # As offline: of a recorded image the name tells whether it is rectified.
    rectified = bool(bag) and cameras == "mono" and "rect" in played
    remaps = [(old, new) for old, new in names.items() if new]
    return CameraRemaps(remaps, played, 1 + (pair and played == left), rectified)


def _depth_topics(args: LaunchArguments, odometry: bool, bag: str) -> CameraRemaps:
    """The image and its depth; `odometry`: ours runs, and looks at both."""
    from hydranet_ros.datasets.source import is_bag

    names = {name: args.topic(name) for name in ("image", "camera_info")}
    names |= {f"depth/{name}": args.topic(f"depth_{name}") for name in ("image", "camera_info")}
    if bag and not any(names.values()) and is_bag(bag):
        names |= _topics_in_bag(bag, "rgbd")
    played = names["image"] or "image"
    remaps = [(old, new) for old, new in names.items() if new]
    return CameraRemaps(remaps, played, 1 + odometry, bool(bag) and "rect" in played)


def _topics_in_bag(bag: str, cameras: str) -> dict[str, str]:
    """Relative, as a player publishes them; compressed images by the name of the camera's own."""
    from hydranet_ros.datasets.bag_files import topics
    from hydranet_ros.datasets.rosbag import find_topics

    found = find_topics(bag, topics(bag), cameras=cameras)
    images = [
        name.removesuffix("/compressed").removesuffix("/compressedDepth").lstrip("/")
        for name in found.images
    ]
    infos = ["" if name is None else name.lstrip("/") for name in found.infos]
    if cameras == "mono":
        return {"image": images[0], "camera_info": infos[0]}
    if cameras == "rgbd":
        return {
            **dict(zip(("image", "depth/image"), images, strict=True)),
            **dict(zip(("camera_info", "depth/camera_info"), infos, strict=True)),
        }
    return {
        **dict(zip(("left/image_rect", "right/image_rect"), images, strict=True)),
        **dict(zip(("left/camera_info", "right/camera_info"), infos, strict=True)),
    }


# --- processes apart from others -----------------------------------------------------------------


def private_environment(logs: Path) -> dict[str, str]:
    """For processes that shall meet nobody else: this machine, a free domain, large buffers."""
    known = {name: value for name, value in os.environ.items() if name != WHEELS_GUARD}
    return {
        **known,
        "ROS_DOMAIN_ID": str(free_domain()),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "ROS_LOG_DIR": str(logs.resolve() / "ros"),
        **fast_dds_profile(),
        "PYTHONUNBUFFERED": "1",
    }


def free_domain() -> int:
    """A ROS domain that no process on this machine is in."""
    domains = list(DOMAINS)
    random.shuffle(domains)
    for domain in domains:
        if all(_is_free(7410 + 250 * domain + offset) for offset in range(2 * PARTICIPANTS)):
            return domain
    raise HydraNetError(
        f"no ROS domain from {DOMAINS[0]} to {DOMAINS[-1]} has its UDP ports free: end other nodes"
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
