"""Find the topics of a stereo camera in a bag, by type and by name."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from hydranet_ros.bags.messages import CAMERA_INFO, COMPRESSED_IMAGE, IMAGE, ODOMETRY
from hydranet_ros.errors import FileError

# What distinguishes the two cameras of a pair in the names of drivers and data sets.
PAIRS = (
    ("left", "right"),
    ("infra1", "infra2"),
    ("cam0", "cam1"),
    ("camera_0", "camera_1"),
    ("image_00", "image_01"),
    ("image_0", "image_1"),
)
COMPRESSED = "/compressed"


@dataclass(frozen=True)
class StereoTopics:
    """Names in a bag; `ground_truth` where there is one."""

    left: str
    right: str
    left_info: str
    right_info: str
    ground_truth: str | None


def find_stereo_topics(
    path: str | PathLike[str],
    topics: dict[str, str],
    left: str | None = None,
    right: str | None = None,
) -> StereoTopics:
    """Those of the given image topics, or of the only pair there is."""
    images = {name for name, kind in topics.items() if kind in (IMAGE, COMPRESSED_IMAGE)}
    for name in (left, right):
        if name is not None and name not in images:
            raise FileError(path, f"has no images on {name}: it has {_listed(images)}")
    pairs = [p for p in candidates(images) if left in (None, p[0]) and right in (None, p[1])]
    if left is not None and right is not None:
        pairs = [(left, right)]
    best = [pair for pair in pairs if rank(pair) == min(map(rank, pairs))]
    if len(best) != 1:
        found = "no stereo pair" if not best else "several stereo pairs"
        raise FileError(
            path, f"has {found}: choose a left and a right topic out of {_listed(images)}"
        )
    infos = [_camera_info(path, name, topics) for name in best[0]]
    return StereoTopics(*best[0], infos[0], infos[1], _ground_truth(path, topics))


def candidates(images: set[str]) -> list[tuple[str, str]]:
    """Every pair of names that differ as the names of a left and a right camera do."""
    pairs = [
        (name, name.replace(one, other))
        for one, other in PAIRS
        for name in sorted(images)
        if one in name and name.replace(one, other) in images
    ]
    return list(dict.fromkeys(pairs))


def rank(pair: tuple[str, str]) -> int:
    """Rectified before raw, and of the same images plain before compressed."""
    return 2 * ("rect" not in pair[0]) + pair[0].endswith(COMPRESSED)


def _camera_info(path: str | PathLike[str], image: str, topics: dict[str, str]) -> str:
    name = image.removesuffix(COMPRESSED).rpartition("/")[0] + "/camera_info"
    if topics.get(name) != CAMERA_INFO:
        raise FileError(path, f"has no calibration of {image}: {name} is missing")
    return name


def _ground_truth(path: str | PathLike[str], topics: dict[str, str]) -> str | None:
    named = [n for n, kind in topics.items() if kind == ODOMETRY and "ground_truth" in n]
    if len(named) > 1:
        raise FileError(path, f"has several ground truths, {_listed(set(named))}: give --poses")
    return named[0] if named else None


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
