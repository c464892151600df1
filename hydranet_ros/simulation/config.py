"""What simulated streets and buildings, and the motions through them, are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.settings import Configuration, section, setting
from hydranet_ros.simulation.sensor import SensorConfig

# KITTI's grey pair (1241 x 376, f 718.856 px), as fractions of the image width and height.
_FOCAL_BY_WIDTH = 718.856 / 1241.0
_CENTRE_BY_WIDTH = 607.1928 / 1241.0
_CENTRE_BY_HEIGHT = 185.2157 / 376.0
_BASELINE_M = 0.54
# Every facet of the street is looked at for every frame: this keeps their number in bounds.
LONGEST_M = 3000.0

Place = Literal["room", "office", "hall", "stairs", "desk", "car_park"]
Carrier = Literal["car", "robot", "skid", "hand", "drone", "feet"]
PLACES: tuple[Place, ...] = ("room", "office", "hall", "stairs", "desk", "car_park")
CARRIERS: tuple[Carrier, ...] = ("car", "robot", "skid", "hand", "drone", "feet")
_LONGEST_S = 1800.0


@dataclass(frozen=True)
class Platform(Configuration):
    """How a platform moves; amplitudes are root mean squares of smooth random signals."""

    speed_m_s: float = setting(8.0, "mean speed", 0, 60)
    camera_height_m: float = setting(1.65, "height of the camera above the ground", 0.1, 10)
    yaw_deg: float = setting(0.15, "looking around, on top of the heading of the street", 0, 45)
    pitch_deg: float = setting(0.2, "pitch of the camera", 0, 45)
    roll_deg: float = setting(0.25, "roll of the camera", 0, 45)
    heave_m: float = setting(0.015, "motion up and down", 0, 1)
    sway_m: float = setting(0.12, "motion left and right of the lane's centre", 0, 1)
    frequency_hz: float = setting(0.9, "centre of the band these signals live in", 0.01, 100)


PLATFORMS = {
    "car": Platform(),
    "robot": Platform(1.2, 0.5, 6.0, 0.7, 0.7, 0.006, 0.25, 0.7),
    "handheld": Platform(1.3, 1.6, 9.0, 3.5, 2.5, 0.03, 0.2, 0.6),
}


@dataclass(frozen=True)
class SceneConfig(Configuration):
    """What streets and buildings have in common; equal configurations render equal bytes.

    Everything random (geometry, textures, motion, noise) follows from `seed`, unless textures have
    a seed of their own.
    """

    seed: int = setting(
        0, "chooses the place, its textures, the motion and the noise", 0, 2**63 - 1
    )
    frames: int = setting(100, "number of stereo frames", 1, 100_000)
    rate_hz: float = setting(10.0, "frames per second", 0.1, 1000)
    width: int = setting(480, "width of an image in pixels", 16, 4096)
    height: int = setting(360, "height of an image in pixels", 16, 4096)
    camera: StereoCamera | None = setting(
        None,
        "the stereo pair; None has KITTI's field of view and baseline on a street, and is "
        "74 deg wide with a baseline of 0.12 m in a building",
    )
    mount_yaw_deg: float = setting(0.0, "turn of the camera in its mount, right", -180, 180)
    mount_pitch_deg: float = setting(0.0, "turn of the camera in its mount, up", -90, 90)
    mount_roll_deg: float = setting(0.0, "turn of the camera in its mount, clockwise", -180, 180)

    texture_seed: int | None = setting(
        None,
        "chooses the textures; None follows seed. Scenes that share it are made faster",
        0,
        2**63 - 1,
    )
    texture_contrast: float = setting(
        1.0,
        "scales the variation of every texture about its mean; 1 is a sunny day, 0 is flat paint",
        0,
        2,
    )
    blur_sigma_px: float = setting(0.5, "Gaussian blur of the lens, in pixels", 0, 20)
    shutter_s: float = setting(
        0.0,
        "time the shutter is open: motion blur along the true image motion, centred on the stamp",
        0,
        1,
    )
    gain: float = setting(
        1.0, "exposure: grey = 255 (gain value / 255)^gamma, clipped to 0..255", 0.01, 10
    )
    gamma: float = setting(1.0, "exponent of the exposure", 0.1, 10)
    gain_drift: float = setting(
        0.0,
        "the gain drifts smoothly between gain (1 - drift) and gain (1 + drift) over the frames",
        0,
        0.9,
    )
    right_gain: float = setting(1.0, "gain of the right camera relative to the left", 0.1, 10)
    noise_sigma: float = setting(
        1.0, "standard deviation of the sensor noise in grey levels, independent per image", 0, 100
    )
    sensor: SensorConfig = section(SensorConfig)


@dataclass(frozen=True)
class StreetConfig(SceneConfig):
    """A street, and the drive along it."""

    width: int = setting(620, "width of an image in pixels", 16, 4096)
    height: int = setting(188, "height of an image in pixels", 16, 4096)
    motion: Literal["car", "robot", "handheld"] = setting(
        "car", "what carries the camera, from steady to wild rotations"
    )
    speed_m_s: float | None = setting(
        None, "mean speed; None takes the platform's, 0 stands still", 0, 60
    )
    speed_variation: float = setting(
        0.4, "how much the speed varies about its mean, from constant to down to a halt", 0, 1
    )
    max_heading_deg: float = setting(
        65.0,
        "largest angle between the street and its first direction; 0 is a straight street",
        0,
        75,
    )
    wobble: float = setting(
        1.0, "scales looking around, pitch, roll, heave and sway; 0 follows the street", 0, 3
    )
    lever_m: float = setting(
        0.0,
        "how far the camera is in front of the axle that follows the street: in a turn it then "
        "moves sideways as well",
        -5,
        5,
    )
    moving_cars: int = setting(
        3, "cars along the street: the second one leads ours, the others come towards us", 0, 100
    )
    crossing_cars: int = setting(1, "cars that cross ahead of us at right angles", 0, 100)
    clutter: float = setting(
        0.6,
        "chance that a place at the kerb or on the pavement holds a parked car, a tree or a pole",
        0,
        1,
    )

    def validate(self) -> None:
        """Check what no field can tell alone."""
        length = self.mean_speed_m_s * self.frames / self.rate_hz
        if length > LONGEST_M:
            raise ValueError(
                f"frames: {self.frames} of them drive {length:.0f} m, at most {LONGEST_M:.0f} m"
            )

    @property
    def stereo(self) -> StereoCamera:
        """The stereo pair in use."""
        if self.camera is not None:
            return self.camera
        focal = _FOCAL_BY_WIDTH * self.width
        centre = _CENTRE_BY_WIDTH * self.width, _CENTRE_BY_HEIGHT * self.height
        return StereoCamera(Camera(focal, focal, *centre), _BASELINE_M)

    @property
    def platform(self) -> Platform:
        """The numbers behind `motion`."""
        return PLATFORMS[self.motion]

    @property
    def mean_speed_m_s(self) -> float:
        """`speed_m_s`, or that of the motion."""
        return self.platform.speed_m_s if self.speed_m_s is None else self.speed_m_s


@dataclass(frozen=True)
class BuildingConfig(SceneConfig):
    """A building, and the motion through it."""

    place: Place = setting("room", "what the building is")
    motion: Carrier = setting("robot", "what carries the camera")
    speed: float = setting(1.0, "scales how fast it moves and turns; 0 stands still", 0, 4)
    parallax: float = setting(
        1.0, "scales how far a hand moves; near 0 it only turns the camera", 0, 1
    )
    wobble: float = setting(1.0, "scales shaking: tremor, steps, rough ground, gusts", 0, 3)
    camera_height_m: float | None = setting(
        None, "height of the camera above the floor; None takes what suits the motion", 0.1, 10
    )
    clutter: float = setting(0.6, "how much furniture stands and lies around", 0, 1)
    people: int = setting(1, "people, or vehicles, that move through", 0, 20)
    blank: float = setting(0.3, "share of walls, floors and furniture with no pattern", 0, 1)

    def validate(self) -> None:
        """Check what no field can tell alone."""
        if self.duration_s > _LONGEST_S:
            raise ValueError(
                f"frames: {self.frames} of them last {self.duration_s:.0f} s, at most "
                f"{_LONGEST_S:.0f} s"
            )

    @property
    def duration_s(self) -> float:
        """From the first to the last frame."""
        return (self.frames - 1) / self.rate_hz

    @property
    def stereo(self) -> StereoCamera:
        """The stereo pair in use."""
        if self.camera is not None:
            return self.camera
        focal = self.width / 1.5
        return StereoCamera(Camera(focal, focal, 0.5 * self.width, 0.5 * self.height), 0.12)
