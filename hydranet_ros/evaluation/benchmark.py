"""Everything that this package estimates, measured over sequences with truth, in one run.

Of each sequence: the visual gyro and other methods for the same rotations (`five_point`); stereo
or RGB-D odometry and its fusion with the gyro; simulated wheels and their fusion with the gyro.
Figures are flat, by sequence, method and name, so that runs can be compared:

    deg_1, deg_10, deg_100     mean error of the rotation over so many frames, in blocks that all
                               methods for rotations have
    nees_1, nees_10, nees_100  of those blocks: 3 is ideal of a rotation, 6 of a pose
    ate_m, ate_deg             mean absolute error, from the first true pose on
    devkit_pct, devkit_deg_per_100m    KITTI's, on paths of 100 m and more
    lost                       frames without an estimate
    ms                         median time of a frame: it depends on the machine
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import walk
from pathlib import Path
from typing import Any, cast

import numpy as np

from hydranet_ros.datasets.euroc import is_euroc
from hydranet_ros.datasets.seven_scenes import find_sequence
from hydranet_ros.datasets.source import (
    KITTI_PARTS,
    SimulatedStreet,
    SimulatedWorld,
    Source,
    is_bag,
    open_source,
    true_trajectory,
)
from hydranet_ros.datasets.tum import is_listed
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.five_point import peers, rotation_comparison
from hydranet_ros.evaluation.run import RunResults, wheels_of_truth
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Frame, StereoCamera
from hydranet_ros.geometry.estimates import RelativeRotation, compose_with_covariance
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps
from hydranet_ros.geometry.trajectory import Trajectory
from hydranet_ros.pipeline import Pipeline, PipelineConfig
from hydranet_ros.simulation import Building, BuildingConfig

LENGTHS = (1, 10, 100)
GYRO, ODOMETRY, FUSED = "gyro", "odometry", "fused"
WHEELS, WITH_WHEELS = "wheels", "wheels + gyro"
CARRIED = ("EuRoC", "TUM", "7-Scenes")  # by drones and hands
DRONE = "hall"
SIMULATED = ("street", "office", DRONE)
SIMULATED_FRAMES = 200
TRAJECTORY = ("ate_m", "ate_deg", "devkit_pct", "devkit_deg_per_100m")

Figures = dict[str, float | None]


@dataclass(frozen=True)
class BenchmarkSequence:
    """A sequence to measure: its name in tables, the data set it is of, and where it is."""

    name: str
    kind: str
    path: str

    @property
    def on_ground(self) -> bool:
        """Whether wheels could have carried the camera."""
        return self.kind not in CARRIED and self.name != DRONE


def find_sequences(folder: Path) -> list[BenchmarkSequence]:
    """The sequences below a folder, by the layout of each; nothing is looked for within one."""
    found = []
    for place, folders, files in walk(folder, followlinks=True):
        path = Path(place)
        kind = _kind(path)
        if kind is not None:
            found.append(BenchmarkSequence(_name(path, folder), kind, str(path)))
            folders.clear()
            continue
        folders.sort()
        for file in sorted(files):
            if is_bag(path / file):
                found.append(
                    BenchmarkSequence(_name(path / file, folder), "rosbag2", str(path / file))
                )
    return sorted(found, key=lambda each: each.name)


def _name(path: Path, folder: Path) -> str:
    within = path.relative_to(folder).as_posix()
    return folder.resolve().name if within == "." else within


def _kind(folder: Path) -> str | None:
    if is_bag(folder):
        return "rosbag2"
    if all((folder / part).exists() for part in KITTI_PARTS if part != "image_1"):
        return "KITTI"
    if is_euroc(folder):
        return "EuRoC"
    if is_listed(folder):
        return "TUM"
    return "7-Scenes" if find_sequence(folder) else None


def open_sequence(sequence: BenchmarkSequence, frames: int | None) -> Source:
    """With a pair where it has one, else with depth, else with one camera."""
    if sequence.kind == "simulated":
        return _simulated(sequence.name, frames or SIMULATED_FRAMES)
    reason: HydraNetError | None = None
    for cameras in ("stereo", "rgbd", "mono"):
        try:
            return open_source(sequence.path, max_frames=frames, cameras=cameras)
        except HydraNetError as error:
            reason = error
    assert reason is not None
    raise reason


def simulated_sequences() -> list[BenchmarkSequence]:
    """A street by car, an office by robot, a hall by drone: for those who have no data."""
    return [BenchmarkSequence(name, "simulated", name) for name in SIMULATED]


def _simulated(name: str, frames: int) -> Source:
    if name == "street":
        return SimulatedStreet(frames)
    rate, motion = (10.0, "robot") if name == "office" else (20.0, "drone")
    config = BuildingConfig(4, frames, rate, place=cast("Any", name), motion=cast("Any", motion))
    return SimulatedWorld(name, Building(config))


def measured(
    sequence: BenchmarkSequence,
    frames: int | None,
    config: PipelineConfig,
    progress: Callable[[Source], Iterator[Frame]] = iter,
) -> dict[str, Any]:
    """A sequence with its figures, as a run of the benchmark keeps it."""
    source = open_sequence(sequence, frames)
    return {
        "kind": sequence.kind,
        "frames": len(source),
        "path_m": round(path_length_m(source), 2),
        "methods": measure(source, config, sequence.on_ground, progress),
    }


# --- one sequence --------------------------------------------------------------------------------


class Timed:
    """A part of a pipeline, and how long each of its frames took."""

    def __init__(self, part: Any) -> None:
        self._part = part
        self.ms: list[float] = []

    def update(self, frame: Any) -> Any:
        """Of the part."""
        start = time.perf_counter()
        result = self._part.update(frame)
        self.ms.append(1e3 * (time.perf_counter() - start))
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    @property
    def median_ms(self) -> float | None:
        """Without the first frame, which has nothing to compare with."""
        return float(np.median(self.ms[1:])) if len(self.ms) > 1 else None


class Replayed:
    """A gyro that says once more what it has said."""

    def __init__(self, rotations: Sequence[RelativeRotation]) -> None:
        self._rotations = {each.stamp_2_ns: each for each in rotations}
        self.lost = None  # what was lost then is not counted again

    def update(self, frame: Frame) -> RelativeRotation | None:
        """The rotation that ends at a frame."""
        return self._rotations.get(frame.stamp_ns)


def measure(
    source: Source,
    config: PipelineConfig,
    wheels: bool = True,
    progress: Callable[[Source], Iterator[Frame]] = iter,
) -> dict[str, Figures]:
    """The figures of every method that a source allows, by its name; of wheels where asked."""
    truth = true_trajectory(source)
    if truth is None or len(truth) < 2:
        raise HydraNetError(f"{source.name}: has no true poses: nothing to compare with")
    pair = isinstance(source.camera, StereoCamera)
    pipeline = Pipeline(source.camera, replace(config, parts="all" if pair else "rotation"))
    gyro, odometry = Timed(pipeline.gyro), Timed(pipeline.vo)
    pipeline.gyro = cast("Any", gyro)
    if pipeline.vo is not None:
        pipeline.vo = cast("Any", odometry)
    left = source.camera.left if isinstance(source.camera, StereoCamera) else source.camera
    others = {name: Timed(peer) for name, peer in peers(left).items()}
    said: dict[str, list[Array | None]] = {name: [] for name in others}
    results = RunResults(source, pipeline)
    for frame in progress(source):
        start = time.perf_counter()
        step = pipeline.update(frame)
        results.add(step, 1e3 * (time.perf_counter() - start))
        for name, peer in others.items():
            said[name].append(peer.update(frame.left))
    if len(results.stamps_ns) < 2:
        raise HydraNetError(f"{source.name}: has fewer than two frames")
    found = _rotations(results, truth, said)
    found[GYRO]["ms"] = gyro.median_ms
    for name, peer in others.items():
        found[name]["ms"] = peer.median_ms
    if pair:
        found |= _trajectories(results, truth, {"vo": ODOMETRY, "fused": FUSED})
        found[ODOMETRY]["ms"] = odometry.median_ms
        found[FUSED]["ms"] = results.timing["ms_median"]
    return found | (_wheels(source, config, results.rotations, truth) if wheels else {})


def _rotations(
    results: RunResults, truth: Trajectory, said: Mapping[str, list[Array | None]]
) -> dict[str, Figures]:
    stamps = results.stamps()
    none = np.full((3, 3), np.nan)
    others = {
        name: np.array([none if C is None else C for C in each[1:]]) for name, each in said.items()
    }
    compared = rotation_comparison(results.rotations, others, truth, stamps, LENGTHS)
    found: dict[str, Figures] = {GYRO: {}, **{name: {} for name in others}}
    for name, figures in found.items():
        for length, each in compared.items():
            figures[f"deg_{length}"] = each["mean_deg"]["ours" if name == GYRO else name]
    for length, each in compared.items():
        found[GYRO][f"nees_{length}"] = each["nees_lasting"]
        found[GYRO][f"nees_summed_{length}"] = each["nees"]
    found[GYRO]["lost"] = len(stamps) - 1 - len(results.rotations)
    for name, C in others.items():
        found[name]["lost"] = int(np.isnan(C[:, 0, 0]).sum())
    return found


def _trajectories(
    results: RunResults, truth: Trajectory, names: Mapping[str, str]
) -> dict[str, Figures]:
    """Of odometry and of the fusion, by their names in a run and here."""
    figures = results.figures()
    found: dict[str, Figures] = {}
    for name, ours in names.items():
        each: Figures = {key: figures[name][key] for key in TRAJECTORY}
        motions = results.odometry.motions if results.odometry is not None else []
        covariances = {(m.stamp_1_ns, m.stamp_2_ns): m.Sigma_2_1 for m in motions}
        if name == "fused" and results.fused is not None:
            covariances = results.fused.covariances
        T_w_c = results.trajectories()[name]
        for length in LENGTHS:
            each[f"nees_{length}"] = pose_nees(T_w_c, covariances, truth, results.stamps(), length)
        states = {s.stamp_ns for s in results.fused.states} if results.fused is not None else set()
        missing = [s for s in results.stamps_ns[1:] if s not in states]
        each["lost"] = len(missing) if name == "fused" else figures["lost"]
        found[ours] = each
    return found


def _wheels(
    source: Source,
    config: PipelineConfig,
    rotations: Sequence[RelativeRotation],
    truth: Trajectory,
) -> dict[str, Figures]:
    """Simulated wheels, alone and with the rotations of the gyro; the images are not needed."""
    fusion = replace(config.fusion, odometry="wheels")
    config = replace(config, parts="all", fusion=fusion)
    pipeline = Pipeline(source.camera, config, odometry=wheels_of_truth(source, config))
    pipeline.gyro = cast("Any", Replayed(rotations))
    results, blank = RunResults(source, pipeline), np.zeros((1, 1), dtype=np.uint8)
    for stamp in source.stamps_ns.tolist():
        results.add(pipeline.update(Frame(stamp, blank)), 0.0)
    return _trajectories(results, truth, {"wheels": WHEELS, "fused": WITH_WHEELS})


def pose_nees(
    T_w_c: Array,
    covariances: Mapping[tuple[int, int], Array],
    truth: Trajectory,
    stamps_ns: Stamps,
    length: int,
) -> float | None:
    """Mean e^T Sigma^-1 e of motions over blocks of frames, covariances summed along the way.

    A block is left out where a covariance or a true pose of it is not known.
    """
    assert truth.stamps_ns is not None
    rows = {int(stamp): i for i, stamp in enumerate(truth.stamps_ns)}
    values = []
    for start in range(0, len(stamps_ns) - length, length):
        T, Sigma = np.eye(4), np.zeros((6, 6))
        block = [int(stamp) for stamp in stamps_ns[start : start + length + 1]]
        if block[0] not in rows or block[-1] not in rows:
            continue
        for i in range(length):
            step = covariances.get((block[i], block[i + 1]))
            if step is None:
                break
            T_2_1 = lie.se3_inverse(T_w_c[start + i + 1]) @ T_w_c[start + i]
            T, Sigma = compose_with_covariance(T_2_1, step, T, Sigma)
        else:
            first, last = (truth.T_w_c[rows[stamp]] for stamp in (block[0], block[-1]))
            e = lie.se3_log(T @ lie.se3_inverse(lie.se3_inverse(last) @ first))
            values.append(float(e @ np.linalg.solve(Sigma, e)))
    return float(np.mean(values)) if values else None


def path_length_m(source: Source) -> float:
    """Along the true poses."""
    truth = true_trajectory(source)
    if truth is None:
        return 0.0
    return float(np.linalg.norm(np.diff(truth.T_w_c[:, :3, 3], axis=0), axis=1).sum())


# --- against an earlier run ----------------------------------------------------------------------

# By how much a figure may be worse before it counts: a share of it, and an amount.
TOLERANCES: dict[str, tuple[float, float]] = {
    "deg": (0.10, 0.002),
    "ate_m": (0.10, 0.02),
    "ate_deg": (0.10, 0.02),
    "devkit": (0.10, 0.02),
    "nees": (0.25, 0.5),
    "lost": (0.10, 2.0),
}
TIME_TOLERANCE = 0.5, 2.0


def tolerance(figure: str, with_time: bool = False) -> tuple[float, float] | None:
    """That of a figure by the beginning of its name; None where it is not compared."""
    if figure == "ms":
        return TIME_TOLERANCE if with_time else None
    return next((known for name, known in TOLERANCES.items() if figure.startswith(name)), None)


def regressions(
    now: Mapping[str, Any], before: Mapping[str, Any], with_time: bool = False
) -> list[str]:
    """What is worse than in an earlier run, beyond its tolerance, or is not there any more."""
    lines = []
    for name, earlier in before["sequences"].items():
        current = now["sequences"].get(name)
        if current is None:
            lines.append(f"{name}: was not measured")
            continue
        if current["frames"] != earlier["frames"]:
            frames = f"{current['frames']} frames instead of {earlier['frames']}"
            lines.append(f"{name}: {frames}: compare the same ones (--frames)")
            continue
        for method, figures in earlier["methods"].items():
            found = current["methods"].get(method, {})
            lines += _worse(f"{name}, {method}", found, figures, with_time)
    return lines


def _worse(
    where: str, now: Mapping[str, Any], before: Mapping[str, Any], with_time: bool
) -> Iterator[str]:
    for figure, old in before.items():
        allowed = tolerance(figure, with_time)
        if allowed is None or old is None:
            continue
        new = now.get(figure)
        if new is None:
            yield f"{where}: {figure} is not known any more"
        elif new > old * (1.0 + allowed[0]) + allowed[1]:
            yield (
                f"{where}: {figure} from {old:.4g} to {new:.4g}, more than "
                f"{100.0 * allowed[0]:.0f} % + {allowed[1]:g}"
            )
