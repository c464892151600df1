"""What a simulated building, and the motion through it, are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.settings import Configuration, section, setting
from hydranet_ros.simulation.sensor import SensorConfig

Place = Literal["room", "office", "hall", "stairs", "desk", "car_park"]
Carrier = Literal["car", "robot", "skid", "hand", "drone", "feet"]
PLACES: tuple[Place, ...] = ("room", "office", "hall", "stairs", "desk", "car_park")
CARRIERS: tuple[Carrier, ...] = ("car", "robot", "skid", "hand", "drone", "feet")
_LONGEST_S = 1800.0


@dataclass(frozen=True)
class BuildingConfig(Configuration):
    """A building, the motion through it, and the cameras; equal ones render equal bytes.

    Everything random (geometry, textures, motion, noise) follows from `seed`, unless textures have
    a seed of their own.
    """

    seed: int = setting(
        0, "chooses the building, its textures, the motion and the noise", 0, 2**63 - 1
    )
    frames: int = setting(100, "number of stereo frames", 1, 100_000)
    rate_hz: float = setting(10.0, "frames per second", 0.1, 1000)
    width: int = setting(480, "width of an image in pixels", 16, 4096)
    height: int = setting(360, "height of an image in pixels", 16, 4096)
    camera: StereoCamera | None = setting(
        None, "the stereo pair; None is 74 deg wide with a baseline of 0.12 m"
    )

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
    mount_yaw_deg: float = setting(0.0, "turn of the camera in its mount, right", -180, 180)
    mount_pitch_deg: float = setting(0.0, "turn of the camera in its mount, up", -90, 90)
    mount_roll_deg: float = setting(0.0, "turn of the camera in its mount, clockwise", -180, 180)

    clutter: float = setting(0.6, "how much furniture stands and lies around", 0, 1)
    people: int = setting(1, "people, or vehicles, that move through", 0, 20)
    blank: float = setting(0.3, "share of walls, floors and furniture with no pattern", 0, 1)

    texture_seed: int | None = setting(
        None,
        "chooses the textures; None follows seed. Buildings that share it are made faster",
        0,
        2**63 - 1,
    )
    texture_contrast: float = setting(
        1.0, "scales the variation of every texture about its mean", 0, 2
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
