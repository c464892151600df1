"""What a simulated street is made from: one frozen dataclass, checked where it is made."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from numbers import Integral, Real

from hydranet_ros.geometry.camera import Camera, StereoCamera

# KITTI's grey pair (1241 x 376, f 718.856 px), as fractions of the image width and height.
_FOCAL_BY_WIDTH = 718.856 / 1241.0
_CENTRE_BY_WIDTH = 607.1928 / 1241.0
_CENTRE_BY_HEIGHT = 185.2157 / 376.0
_BASELINE_M = 0.54
# Every facet of the street is looked at for every frame: this keeps their number in bounds.
LONGEST_M = 3000.0


@dataclass(frozen=True)
class Platform:
    """How a platform moves; amplitudes are root mean squares of smooth random signals."""

    speed_m_s: float
    camera_height_m: float
    yaw_deg: float  # looking around, on top of the heading of the street
    pitch_deg: float
    roll_deg: float
    heave_m: float  # up and down
    sway_m: float  # left and right of the lane's centre
    frequency_hz: float  # centre of the band these signals live in


PLATFORMS = {
    "car": Platform(8.0, 1.65, 0.15, 0.2, 0.25, 0.015, 0.12, 0.9),
    "robot": Platform(1.2, 0.5, 6.0, 0.7, 0.7, 0.006, 0.25, 0.7),
    "handheld": Platform(1.3, 1.6, 9.0, 3.5, 2.5, 0.03, 0.2, 0.6),
}


@dataclass(frozen=True)
class StreetConfig:
    """A street, the drive along it, and the cameras; equal configurations render equal bytes.

    Everything random (geometry, textures, drive, noise) follows from `seed`, unless textures have
    a seed of their own.
    """

    # Chooses the street, its textures, the drive and the noise.
    seed: int = 0
    # Number of stereo frames.
    frames: int = 100
    # Frames per second.
    rate_hz: float = 10.0
    # Image size in pixels.
    width: int = 620
    height: int = 188
    # The stereo pair; None has KITTI's field of view and baseline at this image size.
    camera: StereoCamera | None = None

    # What carries the camera: "car", "robot" or "handheld", from steady to wild rotations.
    motion: str = "car"
    # Mean speed; None takes the motion's. 0 stands still.
    speed_m_s: float | None = None
    # How much the speed varies about its mean, from 0 (constant) to 1 (down to a halt).
    speed_variation: float = 0.4
    # Largest angle between the street and its first direction; 0 is a straight street.
    max_heading_deg: float = 65.0
    # Scales looking around, pitch, roll, heave and sway; 0 follows the street exactly.
    wobble: float = 1.0
    # How far the camera is in front of the axle that follows the street: in a turn it then moves
    # sideways as well.
    lever_m: float = 0.0
    # How the camera is turned in its mount: to the right, up, and clockwise.
    mount_yaw_deg: float = 0.0
    mount_pitch_deg: float = 0.0
    mount_roll_deg: float = 0.0

    # Cars that drive along the street: the second one leads ours, the others come towards us.
    moving_cars: int = 3
    # Cars that cross ahead of us at right angles.
    crossing_cars: int = 1
    # Chance that a place at the kerb or on the pavement holds a parked car, a tree or a pole.
    clutter: float = 0.6

    # Chooses the textures; None follows `seed`. Streets that share it share the time to make them.
    texture_seed: int | None = None
    # Scales the variation of every texture about its mean; 1 is a sunny day, 0 is flat paint.
    texture_contrast: float = 1.0
    # Gaussian blur of the lens, in pixels.
    blur_sigma_px: float = 0.5
    # Time the shutter is open: motion blur along the true image motion, centred on the stamp.
    shutter_s: float = 0.0
    # Exposure: grey = 255 (gain value / 255)^gamma, clipped to 0..255.
    gain: float = 1.0
    gamma: float = 1.0
    # The gain drifts smoothly between gain (1 - drift) and gain (1 + drift) over the frames.
    gain_drift: float = 0.0
    # Gain of the right camera relative to the left one.
    right_gain: float = 1.0
    # Standard deviation of the sensor noise in grey levels, independent in every image.
    noise_sigma: float = 1.0

    def __post_init__(self) -> None:
        for ranges, whole in ((_WHOLE_RANGES, True), (_RANGES, False)):
            for name, (low, high) in ranges.items():
                _check(name, getattr(self, name), low, high, whole)
        if self.speed_m_s is not None:
            _check("speed_m_s", self.speed_m_s, 0.0, 60.0)
        if self.texture_seed is not None:
            _check("texture_seed", self.texture_seed, 0, inf, whole=True)
        if self.motion not in PLATFORMS:
            raise ValueError(f"motion must be one of {', '.join(PLATFORMS)}, got {self.motion!r}")
        length = self.mean_speed_m_s * self.frames / self.rate_hz
        if length > LONGEST_M:
            raise ValueError(
                f"frames: {self.frames} of them drive {length:.0f} m, at most {LONGEST_M:.0f} m"
            )
        if self.camera is not None and not isinstance(self.camera, StereoCamera):
            raise ValueError(f"camera must be a StereoCamera, got {self.camera!r}")

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


_WHOLE_RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, inf),
    "frames": (1, 100_000),
    "width": (16, 4096),
    "height": (16, 4096),
    "moving_cars": (0, 100),
    "crossing_cars": (0, 100),
}
_RANGES: dict[str, tuple[float, float]] = {
    "rate_hz": (0.1, 1000.0),
    "speed_variation": (0.0, 1.0),
    "max_heading_deg": (0.0, 75.0),
    "wobble": (0.0, 3.0),
    "lever_m": (-5.0, 5.0),
    "mount_yaw_deg": (-30.0, 30.0),
    "mount_pitch_deg": (-30.0, 30.0),
    "mount_roll_deg": (-30.0, 30.0),
    "clutter": (0.0, 1.0),
    "texture_contrast": (0.0, 2.0),
    "blur_sigma_px": (0.0, 20.0),
    "shutter_s": (0.0, 1.0),
    "gain": (0.01, 10.0),
    "gamma": (0.1, 10.0),
    "gain_drift": (0.0, 0.9),
    "right_gain": (0.1, 10.0),
    "noise_sigma": (0.0, 100.0),
}


def _check(name: str, value: object, low: float, high: float, whole: bool = False) -> None:
    right_kind = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not (right_kind and isfinite(value) and low <= value <= high):  # type: ignore[arg-type,operator]
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name} must be {kind} from {low} to {high}, got {value!r}")
