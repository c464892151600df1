"""The three acts of the demonstration: a world, what is wrong in it, the nodes, the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hydranet_ros.cli.demo_nodes import (
    INPUT,
    ODOMETRY,
    POSE,
    ROTATION,
    DemoConfig,
    Stage,
    parameters,
    rotations,
)
from hydranet_ros.datasets.source import Source, true_trajectory
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.acts import (
    BIAS,
    PRIOR,
    WHEELS,
    Outcome,
    bias_found,
    heading,
    rotation_over_gap,
)
from hydranet_ros.geometry.camera import Camera, Frame, Image, StereoCamera
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps
from hydranet_ros.ros.environment import Value, node_command
from hydranet_ros.simulation.imu import SimulatedImuConfig, simulate_imu
from hydranet_ros.simulation.wheels import SimulatedWheelsConfig, simulate_wheels, vehicle_up

if TYPE_CHECKING:
    from hydranet_ros.datasets.bag_messages import Message
    from hydranet_ros.evaluation.recorded import RecordedRun
    from hydranet_ros.simulation import Building
    from hydranet_ros.simulation.world import World

WHEELS_S, IMU_S, STREET_FRAMES = 16.0, 28.0, 140
# A robot that gets about: what it turns by, how far it goes, how fast it turns at most.
TURNED_RAD, WAY_M, FASTEST_RAD_S = np.radians(240.0), 6.0, np.radians(70.0)
MOST_WORLDS = 1000
MOST_TILT_DEG = 12.0  # of a car on a hill, with room
ALONE_WAIT_S = 0.1
IMU = "/imu/data_raw"
UP_C = np.array([0.0, -1.0, 0.0])
BIAS_DEG_S = (1.0, 1.0, 1.0)
# What a camera keeps of the contrast in the dark and before a blank wall, and its noise in grey
# levels. Features of stereo odometry need four grey levels per pixel.
DIM, NOISE, WALL_GREY = 0.1, 0.5, 120.0
# Seconds: how long it is dark, then blank, how fast the light goes and comes, and what is kept
# bright before and after. Odometry keeps its old features for about a second.
DARK_S, BLANK_S, RAMP_S, BRIGHT_S = 4.0, 2.5, 0.5, 2.5


@dataclass(frozen=True)
class Act:
    """One act. `world` is rendered where no source is given; `bound` is what it is held to."""

    number: int
    title: str
    bound: float
    world: Callable[[int], Source]
    staged: Callable[[Source], Source]
    sensors: Callable[[Source, int], Iterator[Message]]
    judged: Callable[[RecordedRun, Source, float], Outcome]
    stage: Callable[[DemoConfig], Stage]
    cameras: str = "mono"
    pace: float = 1.0
    """How fast it is played: a bias does not ask how late rotations come."""

    def open(self, source: Source | None, seed: int) -> Source:
        """The source of the act: a world of its own, or data that the truth is known of."""
        source = self.world(seed) if source is None else source
        if true_trajectory(source) is None:
            raise HydraNetError(
                f"{source.name}: has no true poses, by which an act is judged: use --poses FILE, "
                "or hydranet run"
            )
        return self.staged(source)

    def messages(self, source: Source, seed: int) -> Iterator[Message]:
        """All that is played, in order of time."""
        from hydranet_ros.datasets.bag_messages import recorded

        sensors = self.sensors(source, seed)
        return merge(recorded(source), sensors, key=lambda message: message.stamp_ns)


# --- sources -------------------------------------------------------------------------------------


class Rendered:
    """A simulated world as a source: with one camera, or with both."""

    def __init__(self, name: str, world: World, stereo: bool) -> None:
        self.name, self.unmatched = name, 0
        self._world, self._stereo = world, stereo
        self.camera: Camera | StereoCamera = world.camera if stereo else world.camera.left
        self.stamps_ns: Stamps = np.asarray(world.stamps_ns, dtype=np.int64)
        self.T_w_c: Array | None = world.T_w_c

    def __len__(self) -> int:
        return len(self._world)

    def __iter__(self) -> Iterator[Frame]:
        for index, stamp in enumerate(self.stamps_ns.tolist()):
            right = self._world.photograph(index, 1) if self._stereo else None
            yield Frame(stamp, self._world.photograph(index), right)


class Dimmed:
    """A source with a dark tunnel and a blank wall after it, where it turns most.

    Grey levels become offset + contrast * grey + noise. In the dark the offset is 0; before a wall
    that is painted nearly all over it is the grey of the wall.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.name, self.unmatched = source.name, source.unmatched
        self.camera, self.stamps_ns, self.T_w_c = source.camera, source.stamps_ns, source.T_w_c
        self._seconds = (self.stamps_ns - self.stamps_ns[0]) * 1e-9
        self._begin = self._where_it_turns()

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Frame]:
        for index, frame in enumerate(self._source):
            contrast, offset = self._light(float(self._seconds[index]))
            left, right = (
                None if image is None else _seen(image, contrast, offset, [index, side])
                for side, image in enumerate((frame.left, frame.right))
            )
            assert left is not None
            yield replace(frame, left=left, right=right)

    def _where_it_turns(self) -> float:
        """When the dark begins: so that the heading changes most while it lasts."""
        assert self.T_w_c is not None
        known = np.isfinite(self.T_w_c).all(axis=(1, 2))
        times = self._seconds[known]
        length = DARK_S + BLANK_S
        begins = times[(times >= BRIGHT_S) & (times <= times[-1] - length - BRIGHT_S)]
        if not len(begins):
            least = length + 2.0 * BRIGHT_S
            raise HydraNetError(f"{self.name}: is too short for this act: it takes {least:g} s")
        ahead = self.T_w_c[known][:, :3, 2]
        before, after = (
            np.stack([np.interp(begins + shift, times, ahead[:, k]) for k in range(3)], axis=-1)
            for shift in (0.0, length)
        )
        return float(begins[np.argmin((before * after).sum(axis=1))])

    def _light(self, second: float) -> tuple[float, float]:
        """Contrast and offset at a time."""
        end = self._begin + DARK_S + BLANK_S
        away = max(self._begin - second, second - end, 0.0) / RAMP_S
        contrast = float(DIM ** max(0.0, 1.0 - away))
        lit = np.clip((second - self._begin - DARK_S) / RAMP_S, 0.0, 1.0)
        return contrast, float(WALL_GREY * (1.0 - contrast) * lit)


def _seen(image: Image, contrast: float, offset: float, seed: list[int]) -> Image:
    if contrast == 1.0:
        return image
    noise = np.random.default_rng(seed).standard_normal(image.shape, np.float32) * NOISE
    grey = offset + contrast * image.astype(np.float32) + noise
    return np.asarray(np.clip(np.rint(grey), 0, 255), dtype=np.uint8)


def _robot(seed: int) -> Source:
    """A robot in an office: the first world of the seed in which it gets about.

    Where wheels go straight on, nothing is wrong with them. What the cameras see is not looked at.
    """
    for number in range(MOST_WORLDS):
        world = _office(MOST_WORLDS * seed + number, WHEELS_S, 12.0, speed=1.2, blank=0.1)
        heading = np.unwrap(np.arctan2(world.T_w_c[:, 0, 2], world.T_w_c[:, 2, 2]))
        way = np.linalg.norm(np.diff(world.T_w_c[:, :3, 3], axis=0), axis=1).sum()
        fastest = np.abs(np.diff(heading)).max() * 12.0
        if np.ptp(heading) >= TURNED_RAD and way >= WAY_M and fastest <= FASTEST_RAD_S:
            break
    return Rendered("a robot in a building", world, stereo=False)


def _robot_with_imu(seed: int) -> Source:
    return Rendered("a robot with an IMU", _office(seed, IMU_S, 10.0, 0.8, 0.3), stereo=False)


def _office(seed: int, seconds: float, rate_hz: float, speed: float, blank: float) -> Building:
    from hydranet_ros.simulation import Building, BuildingConfig

    config = BuildingConfig(
        seed=seed,
        frames=round(seconds * rate_hz),
        rate_hz=rate_hz,
        width=320,
        height=240,
        place="office",
        speed=speed,
        blank=blank,
    )
    return Building(config)


def _street(seed: int) -> Source:
    from hydranet_ros.simulation import Street, StreetConfig

    config = StreetConfig(seed, frames=STREET_FRAMES, moving_cars=0, crossing_cars=0)
    return Rendered("a street with a tunnel", Street(config), stereo=True)


def _on_ground(source: Source) -> Source:
    """The source, unless it flies: wheels of a drone would be judged by what they cannot know."""
    assert source.T_w_c is not None
    T = source.T_w_c[np.isfinite(source.T_w_c).all(axis=(1, 2))]
    up_w = T[:, :3, :3] @ vehicle_up(source.T_w_c, UP_C)
    mean = up_w.mean(axis=0) / np.linalg.norm(up_w.mean(axis=0))
    tilt = float(np.degrees(np.arccos(np.clip(up_w @ mean, -1.0, 1.0))).max())
    if tilt > MOST_TILT_DEG:
        raise HydraNetError(
            f"{source.name}: tilts by {tilt:.0f} deg, as nothing on wheels does: use --act 2 or 3"
        )
    return source


# --- sensors beside the camera, from the true poses ----------------------------------------------


def _wheels(source: Source, seed: int) -> Iterator[Message]:
    from hydranet_ros.datasets.bag_messages import wheel_messages

    assert source.T_w_c is not None
    config = SimulatedWheelsConfig(yaw_scale=0.05, slip=0.02, seed=seed)
    up_c = vehicle_up(source.T_w_c, UP_C)
    motions = simulate_wheels(source.T_w_c, source.stamps_ns, config, up_c)
    yield from wheel_messages(WHEELS, motions)


def _imu(source: Source, seed: int) -> Iterator[Message]:
    from hydranet_ros.datasets.bag_messages import imu_messages

    assert source.T_w_c is not None
    config = SimulatedImuConfig(bias_deg_s=BIAS_DEG_S, seed=seed)
    up_w = source.T_w_c[0, :3, :3] @ UP_C
    samples = simulate_imu(source.T_w_c, source.stamps_ns, config, up_w)
    yield from imu_messages(IMU, samples)


def _none(_: Source, __: int) -> Iterator[Message]:
    return iter(())


# --- nodes ---------------------------------------------------------------------------------------

FUSED = {"fused/odometry": ODOMETRY}
ROTATIONS = {ROTATION: POSE, f"{ROTATION}/interval": "sensor_msgs/msg/TimeReference"}
TRUTH = {
    "left/camera_info": "sensor_msgs/msg/CameraInfo",
    "ground_truth/odometry": ODOMETRY,
    "/diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
}

# Who is to hear the truth and the camera from the first on: the recorder, and a node.
HEARD = {"ground_truth/odometry": 1, "left/camera_info": 2}


def _gyro(config: DemoConfig) -> list[str]:
    given = parameters("gyro", replace(config.gyro, cameras="mono")) | INPUT
    remaps = {"image": "left/image_rect", "camera_info": "left/camera_info"}
    return node_command("hydranet_node", given | {"input.rectified": True}, remaps)


def _fusion(
    config: DemoConfig,
    odometry: str,
    remaps: Mapping[str, str] | None = None,
    alone: bool = False,
) -> list[str]:
    """Fusion of rotations and odometry; `alone`: of one of them, the other is not waited for."""
    given: dict[str, Value] = parameters("fusion", config.fusion)
    if alone:
        given["fusion.max_wait_s"] = ALONE_WAIT_S
    given |= {"fusion.odometry": odometry, "input.depth": 1000, "imu.depth": 10000}
    return node_command("fusion_node", given, rotations() | dict(remaps or {}))


def _with_wheels(config: DemoConfig) -> Stage:
    nodes = {
        "fusion_node": _fusion(config, "wheels", {"vo/odometry": WHEELS.lstrip("/")}),
        "hydranet_node": _gyro(config),
    }
    topics = TRUTH | FUSED | ROTATIONS | {WHEELS.lstrip("/"): ODOMETRY}
    listeners = HEARD | {WHEELS.lstrip("/"): 2}
    return Stage(nodes, topics, ("fused/odometry", ROTATION), 1, listeners)


def _with_stereo(config: DemoConfig) -> Stage:
    prior = {
        "__node": "motion_prior",
        "fused/odometry": PRIOR.lstrip("/"),
        "relative_rotation": "no_rotations",
        "relative_rotation/interval": "no_rotations/interval",
    }
    nodes = {
        "fusion_node": _fusion(config, "own"),
        "motion_prior": _fusion(config, "own", prior, alone=True),
        "stereo_vo_node": node_command("stereo_vo_node", parameters("vo", config.vo) | INPUT),
        "hydranet_node": _gyro(config),
    }
    odometries = dict.fromkeys(("vo/odometry", PRIOR.lstrip("/")), ODOMETRY)
    topics = TRUTH | FUSED | ROTATIONS | odometries
    return Stage(nodes, topics, ("fused/odometry", *odometries, ROTATION), 2, HEARD)


def _with_imu(config: DemoConfig) -> Stage:
    nodes = {
        "fusion_node": _fusion(config, "visual", alone=True),
        "hydranet_node": _gyro(config),
    }
    bias = {BIAS.lstrip("/"): "geometry_msgs/msg/TwistWithCovarianceStamped"}
    topics = TRUTH | FUSED | ROTATIONS | bias
    listeners = HEARD | {IMU.lstrip("/"): 1}
    return Stage(nodes, topics, (*bias, "fused/odometry", ROTATION), 1, listeners)


# --- the acts ------------------------------------------------------------------------------------

ACTS = (
    Act(
        1,
        "A robot in a building: wheels that slip, a track 5 % wrong, and one camera",
        5.0,
        _robot,
        _on_ground,
        _wheels,
        heading,
        _with_wheels,
    ),
    Act(
        2,
        "Stereo odometry through a dark tunnel and past a blank wall",
        10.0,
        _street,
        Dimmed,
        _none,
        rotation_over_gap,
        _with_stereo,
        cameras="stereo",
    ),
    Act(
        3,
        "An IMU with a bias of 1 deg/s about each axis, and one camera",
        0.05,
        _robot_with_imu,
        lambda source: source,
        _imu,
        lambda run, source, bound: bias_found(run, source, bound, np.array(BIAS_DEG_S)),
        _with_imu,
        pace=2.0,
    ),
)


def prepare(number: int, source: Source | None, seed: int, bag: Path) -> None:
    """Write the bag of an act, beforehand: rendering would take the nodes' time."""
    from hydranet_ros.datasets.bag_files import write_bag

    act = ACTS[number - 1]
    write_bag(bag, act.messages(act.open(source, seed), seed))
