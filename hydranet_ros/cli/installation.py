"""What is installed and found on this machine, and what is wrong with it.

Libraries are imported in processes of their own: one that is damaged may end its process, and the
wheels of ROS 2 start Python anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from hydranet_ros import __version__
from hydranet_ros.errors import REMEDIES, Finding, HydraNetError
from hydranet_ros.ros.environment import (
    DOMAINS,
    PACKAGE,
    PROFILE,
    SEGMENT,
    VARIABLES,
    WHEELS_GUARD,
    fast_dds_variable,
    share_file,
)

PYTHONS = (3, 10), (3, 14)
IMPORT_S = 60.0  # on a busy machine
SHARED_MEMORY = Path("/dev/shm")
SEGMENTS = 6  # processes with images beside each other: a camera, our nodes, RViz, a recorder
RANGES = ("SUBNET", "LOCALHOST", "OFF", "SYSTEM_DEFAULT")
LAST_DOMAIN = 232
# Prints what there is to say of a library beside its version.
_TORCH = "'on ' + (m.cuda.get_device_name(0) if m.cuda.is_available() else 'cpu')"
_RCLPY = "(m.init(), 'middleware ' + m.get_rmw_implementation_identifier())[1]"


@dataclass(frozen=True)
class Library:
    """A library, what it is for, and an expression of what else to tell of the module `m`."""

    name: str
    purpose: str
    needed: bool = False
    tell: str = "''"
    remedy: str = ""


LIBRARIES = (
    *(
        Library(module, "everything", True, remedy=f"pip install --force-reinstall {distribution}")
        for module, distribution in (
            ("numpy", "numpy"),
            ("cv2", "opencv-python-headless"),
            ("yaml", "PyYAML"),
            ("tqdm", "tqdm"),
            ("safetensors", "safetensors"),
            ("threadpoolctl", "threadpoolctl"),
        )
    ),
    Library("rclpy", "nodes", tell=_RCLPY),
    *(
        Library(f"{name}.msg", "nodes", remedy=f"apt install ros-$ROS_DISTRO-{name}")
        for name in ("sensor_msgs", "nav_msgs", "geometry_msgs", "visualization_msgs")
    ),
    Library(
        "tf2_ros", "the camera's place from TF", remedy="apt install ros-$ROS_DISTRO-tf2-ros-py"
    ),
    Library("torch", "training, and the network on a GPU", tell=_TORCH),
    Library("numba", "a faster gyro and fusion"),
    Library("matplotlib", "reports"),
    Library("rosbags", "bags without ROS"),
    Library("viser", "the live view"),
)

# Libraries that may disturb each other are imported apart.
GROUPS = (
    [each for each in LIBRARIES if each.purpose != "nodes" and each.name != "torch"],
    [each for each in LIBRARIES if each.purpose == "nodes"],
    [each for each in LIBRARIES if each.name == "torch"],
)
_IMPORT = """
import importlib, importlib.metadata as metadata, json
owners = metadata.packages_distributions()
for name, tell in {names}:
    try:
        m = importlib.import_module(name)
        names = owners.get(name.partition('.')[0], [])
        version = getattr(m, '__version__', '') or (metadata.version(names[0]) if names else '')
        told = [str(version), eval(tell), '']
    except Exception as error:
        told = ['', '', type(error).__name__ + ': ' + str(error)]
    print(json.dumps(told), flush=True)
"""


def installed(weights: str | None = None) -> Iterator[Finding]:
    """All of it, in the order of a report; `weights` in the place of those that ship."""
    yield _python()
    found = {name: outcome for group in GROUPS for name, outcome in _imports(group).items()}
    for library in LIBRARIES:
        if library.name in found:
            yield found[library.name]
        elif _has_ros() or library.purpose != "nodes" or library.name == "rclpy":
            yield _missing(library)
    yield _weights(weights)
    yield from _ros_environment(os.environ)
    yield from _shared_memory(SHARED_MEMORY)


def has_errors(findings: list[Finding]) -> bool:
    """Whether something stops it."""
    return any(each.level == "error" for each in findings)


def _python() -> Finding:
    """Python and this package."""
    version = sys.version_info
    text = f"hydranet_ros {__version__}, Python {version.major}.{version.minor}.{version.micro}"
    if PYTHONS[0] <= version[:2] < PYTHONS[1]:
        return Finding("ok", "python", text)
    return Finding("warning", "python", f"{text} is not tested", "use Python 3.10 to 3.13")


# --- libraries -----------------------------------------------------------------------------------


def _is_there(module: str) -> bool:
    try:
        return find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):  # a parent that cannot be imported is there, and damaged
        return True


def _has_ros() -> bool:
    return _is_there("rclpy")


def child_environment() -> dict[str, str]:
    """Ours, for a process that the wheels of ROS 2 have to prepare."""
    return {name: value for name, value in os.environ.items() if name != WHEELS_GUARD}


def _imports(libraries: Sequence[Library]) -> dict[str, Finding]:
    """Import those that are there in a process, which tells of each; who ends it is at fault."""
    waiting = [each for each in libraries if _is_there(each.name)]
    found: dict[str, Finding] = {}
    while waiting:
        code = _IMPORT.format(names=[(each.name, each.tell) for each in waiting])
        try:
            done = subprocess.run(
                [sys.executable, "-c", code],
                capture_output=True,
                text=True,
                check=False,
                env=child_environment(),
                timeout=IMPORT_S,
            )
            out, errors = done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            out = (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else ""
            errors = f"not imported within {IMPORT_S:.0f} s"
        told = [json.loads(line) for line in out.splitlines() if line.startswith("[")]
        for library, (version, more, failure) in zip(waiting, told, strict=False):
            found[library.name] = (
                _broken(library, failure)
                if failure
                else Finding("ok", library.name, ", ".join(filter(None, (version, more))))
            )
        if len(told) < len(waiting):
            library = waiting[len(told)]
            found[library.name] = _broken(library, errors)
        waiting = waiting[len(told) + 1 :]
    return found


def _broken(library: Library, errors: str) -> Finding:
    if library.name == "rclpy" and "RMW implementation" in errors:
        return _wrong_middleware(errors)
    remedy = library.remedy or REMEDIES[library.name]
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    reason = lines[-1][:200] if lines else "its process ended"
    return Finding("error", library.name, f"does not start: {reason}", f"again: {remedy}")


def _wrong_middleware(errors: str) -> Finding:
    """RMW_IMPLEMENTATION names a middleware that is not installed."""
    asked = os.environ.get("RMW_IMPLEMENTATION", "")
    found = re.search(r"found '(\w+)'", errors)
    other = found[1] if found else "one that is installed"
    return Finding(
        "error",
        "rclpy",
        f"RMW_IMPLEMENTATION is {asked}, which is not installed",
        f"export RMW_IMPLEMENTATION={other}, or apt install "
        f"ros-$ROS_DISTRO-{asked.replace('_', '-')}",
    )


def _missing(library: Library) -> Finding:
    remedy = library.remedy or REMEDIES[library.name]
    if library.needed:
        return Finding("error", library.name, "is not installed", remedy)
    if library.purpose == "nodes" and library.name != "rclpy":
        return Finding("error", library.name, "is not installed: nodes do not start", remedy)
    return Finding("note", library.name, f"is not installed; it is for {library.purpose}", remedy)


def _weights(file: str | None) -> Finding:
    """The network: read whole, with its checksum."""
    try:
        from hydranet_ros.gyro.predictor_numpy import NumpyPredictor
        from hydranet_ros.gyro.visual_gyro import DEFAULT_WEIGHTS

        path = DEFAULT_WEIGHTS if file is None else Path(file)
        predictor = NumpyPredictor(path)
    except HydraNetError as error:
        remedy = f"again: pip install {PACKAGE}" if file is None else "leave out --weights"
        return Finding("error", "weights", str(error), remedy)
    except ImportError as error:
        return Finding("error", "weights", f"cannot be read without {error.name}", "see above")
    return Finding("ok", "weights", f"{path.name}, {predictor.device_name}")


# --- ROS 2 ---------------------------------------------------------------------------------------


def _ros_environment(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that ROS 2 and its middleware read."""
    if not _has_ros():
        return
    yield from _domain(environment.get("ROS_DOMAIN_ID", "0"))
    reach = environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "")
    if reach and reach not in RANGES:
        yield Finding(
            "error",
            "ROS_AUTOMATIC_DISCOVERY_RANGE",
            f"is {reach}, which ROS 2 does not know",
            "export ROS_AUTOMATIC_DISCOVERY_RANGE=SUBNET, or LOCALHOST",
        )
    yield _index(environment.get("AMENT_PREFIX_PATH", ""))
    yield from _profile(environment)


def _domain(text: str) -> Iterator[Finding]:
    subject = "ROS_DOMAIN_ID"
    remedy = f"export ROS_DOMAIN_ID=0, or another up to {DOMAINS[-1]}"
    if not text.isdecimal() or int(text) > LAST_DOMAIN:
        yield Finding("error", subject, f"is {text!r}, which is no domain", remedy)
    elif int(text) > DOMAINS[-1]:
        yield Finding(
            "warning", subject, f"{text}: its ports are among those that Linux gives away", remedy
        )
    else:
        yield Finding("ok", subject, text)


def _index(prefixes: str) -> Finding:
    """Whether `ros2 launch` and `ros2 run` find this package."""
    marker = f"share/ament_index/resource_index/packages/{PACKAGE}"
    found = [each for each in prefixes.split(os.pathsep) if each and Path(each, marker).is_file()]
    if found:
        return Finding("ok", "ament index", f"{PACKAGE} in {found[0]}")
    remedy = "source install/setup.sh of your workspace"
    if Path(sys.prefix, marker).is_file():
        remedy = f"export AMENT_PREFIX_PATH={sys.prefix}:$AMENT_PREFIX_PATH"
    return Finding("warning", "ament index", f"ros2 launch does not find {PACKAGE}", remedy)


def _profile(environment: Mapping[str, str]) -> Iterator[Finding]:
    """The shared memory that Fast DDS has for images."""
    subject, middleware = "shared memory", environment.get("RMW_IMPLEMENTATION", "")
    if middleware and "fastrtps" not in middleware:
        yield Finding("ok", subject, f"{middleware} has settings of its own")
        return
    given = [name for name in VARIABLES if name in environment]
    for name in given:
        file = Path(environment[name])
        if not file.is_file():
            yield Finding(
                "error",
                subject,
                f"{name}={file}: there is no such file, and Fast DDS takes its defaults",
                f"export {name}={share_file(PROFILE)}",
            )
            return
        size = segment_size(file)
        if size is None:
            yield Finding(
                "warning",
                subject,
                f"{file}: has no segment_size of shared memory",
                f"export {name}={share_file(PROFILE)}",
            )
        else:
            yield Finding("ok", subject, f"{size >> 20} MB for a process by {file}")
        return
    yield Finding(
        "note",
        subject,
        f"Fast DDS has {SEGMENT >> 10} kB for a process: images above {SEGMENT >> 11} kB get lost "
        "between processes that our launch file has not started",
        f"export {fast_dds_variable()}={share_file(PROFILE)}",
    )


def segment_size(profile: Path) -> int | None:
    """Bytes of shared memory that a profile of Fast DDS asks for; None where it does not say."""
    try:
        root = ElementTree.parse(profile).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    sizes = [each.text or "" for each in root.iter() if each.tag.endswith("}segment_size")]
    return int(sizes[0]) if sizes and sizes[0].strip().isdecimal() else None


def _shared_memory(folder: Path) -> Iterator[Finding]:
    """Whether it has room for the segments of several processes with images."""
    if not _has_ros():
        return
    subject = str(folder)
    try:
        room = os.statvfs(folder)
    except OSError as error:
        yield Finding("error", subject, f"{error.strerror}: images need it", "mount it as a tmpfs")
        return
    free = room.f_bavail * room.f_frsize
    wanted = SEGMENTS * (segment_size(share_file(PROFILE)) or SEGMENT)
    if not os.access(folder, os.W_OK):
        yield Finding("error", subject, "cannot be written to", f"sudo chmod 1777 {folder}")
    elif free < wanted:
        yield Finding(
            "warning",
            subject,
            f"{free >> 20} MB are free, and {SEGMENTS} processes with images take {wanted >> 20}",
            "fastdds shm clean, or in a container docker run --shm-size=1g",
        )
    else:
        yield Finding("ok", subject, f"{free >> 20} MB are free")
