"""Simulated worlds to train on: streets, rooms, offices, halls, stairs, desks, car parks.

A third are the streets of `streets`. All have cameras of 40 to 120 deg in any mount, 5 to 60
frames per second, and what cheap sensors do to images. Worlds to calibrate on are of a style that
training does not know: dimmer, noisier, busier.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.simulation.building import Building
from hydranet_ros.simulation.config import BuildingConfig, Carrier, Place, StreetConfig
from hydranet_ros.simulation.sensor import SensorConfig
from hydranet_ros.simulation.street import Street
from hydranet_ros.training.streets import STREETS_PER_TEXTURE, random_street, strange_street

WorldConfig = StreetConfig | BuildingConfig

_STRANGE = 100_000  # number of the first strange world
_STREETS = 1.0 / 3.0
_MOST_PIXELS = 300_000  # of an image: keeps the time of a frame in bounds
_PLACES: dict[Place, float] = {
    "room": 0.25,
    "office": 0.24,
    "desk": 0.16,
    "hall": 0.16,
    "stairs": 0.06,
    "car_park": 0.13,
}
_CARRIERS: dict[Place, tuple[Carrier, ...]] = {
    "room": ("robot", "skid", "hand", "hand", "drone", "feet"),
    "office": ("robot", "robot", "skid", "drone", "feet", "hand"),
    "desk": ("hand", "hand", "hand", "robot", "drone"),
    "hall": ("drone", "drone", "robot", "skid", "feet", "car"),
    "stairs": ("feet", "hand", "drone"),
    "car_park": ("car", "robot", "skid", "feet", "drone", "hand"),
}


def open_world(config: WorldConfig) -> Street | Building:
    """The world of a configuration of either kind."""
    return Building(config) if isinstance(config, BuildingConfig) else Street(config)


def random_world(seed: int, number: int, frames: int) -> WorldConfig:
    """World `number` of a seed; equal arguments give equal worlds, whatever was drawn before."""
    rng = np.random.default_rng([seed, number, 2])
    if rng.random() < _STREETS:
        return _street(random_street(seed, number, frames), rng)
    return _building(rng, seed, number, frames)


def strange_world(seed: int, number: int, frames: int) -> WorldConfig:
    """A world of the style to calibrate on; of other numbers than those to learn from."""
    rng = np.random.default_rng([seed, _STRANGE + number, 3])
    if rng.random() < _STREETS:
        return _street(strange_street(seed, number, frames), rng)
    config = _building(rng, seed, _STRANGE + number, frames)
    return replace(
        config,
        people=int(rng.integers(1, 6)),
        blank=float(rng.uniform(0.3, 0.8)),
        texture_contrast=float(rng.uniform(0.3, 0.7)),
        blur_sigma_px=float(rng.uniform(0.8, 1.4)),
        gain=float(np.exp(rng.uniform(-1.2, -0.3))),
        gamma=float(rng.uniform(0.5, 1.8)),
        gain_drift=float(rng.uniform(0.0, 0.4)),
        noise_sigma=float(rng.uniform(2.0, 5.0)),
    )


def named_world(name: str) -> BuildingConfig:
    """A world to show: office, hall, desk or car_park."""
    if name not in NAMED_WORLDS:
        raise ValueError(f"no world is called {name}: known are {', '.join(NAMED_WORLDS)}")
    return NAMED_WORLDS[name]


# --- how they are drawn --------------------------------------------------------------------------


def _building(rng: np.random.Generator, seed: int, number: int, frames: int) -> BuildingConfig:
    place = str(rng.choice(list(_PLACES), p=list(_PLACES.values())))
    carriers = _CARRIERS[place]  # type: ignore[index]
    motion = carriers[int(rng.integers(len(carriers)))]
    rate_hz = float(np.exp(rng.uniform(np.log(5.0), np.log(60.0))))
    low, high = (0.06, 0.16) if place in ("office", "desk", "stairs") else (0.06, 0.4)
    width, height, camera = random_camera(rng, float(rng.uniform(low, high)))
    yaw, pitch, roll = _mount(rng, motion)
    return BuildingConfig(
        seed=int(rng.integers(2**31)),
        frames=frames,
        rate_hz=rate_hz,
        width=width,
        height=height,
        camera=camera,
        place=place,  # type: ignore[arg-type]
        motion=motion,
        speed=0.0 if rng.random() < 0.05 else float(np.exp(rng.normal(0.0, 0.4)).clip(0.3, 2.5)),
        parallax=float(rng.uniform(0.0, 0.2)) if rng.random() < 0.2 else 1.0,
        wobble=float(rng.uniform(0.0, 2.0)),
        mount_yaw_deg=yaw,
        mount_pitch_deg=pitch,
        mount_roll_deg=roll,
        clutter=float(rng.uniform(0.1, 1.0)),
        people=int(rng.integers(1, 5)) if rng.random() < 0.5 else 0,
        blank=float(rng.uniform(0.0, 0.6)),
        texture_seed=1000 * seed + number // STREETS_PER_TEXTURE,
        texture_contrast=float(rng.uniform(0.5, 1.5)),
        blur_sigma_px=float(rng.uniform(0.2, 0.9)),
        shutter_s=_shutter_s(rng, rate_hz, 0.35),
        gain=float(np.exp(rng.uniform(-0.6, 0.5))),
        gamma=float(rng.uniform(0.6, 1.5)),
        gain_drift=float(rng.uniform(0.0, 0.3)) if rng.random() < 0.3 else 0.0,
        right_gain=float(np.exp(rng.normal(0.0, 0.05))),
        noise_sigma=float(rng.uniform(0.3, 4.0)),
        sensor=_sensor(rng, rate_hz),
    )


def _street(street: StreetConfig, rng: np.random.Generator) -> StreetConfig:
    """A street of `streets` at any rate, with the nuisances of cheap sensors, in any mount."""
    rate_hz = street.rate_hz if rng.random() < 0.6 else float(rng.uniform(5.0, 30.0))
    street = replace(street, rate_hz=rate_hz, sensor=_sensor(rng, rate_hz))
    if rng.random() < 0.25:
        width, height, camera = random_camera(rng, 0.5, 150_000)  # a street costs more per pixel
        street = replace(street, width=width, height=height, camera=camera)
    if rng.random() < 0.15:
        roll = float(rng.choice([90.0, -90.0, 180.0, rng.uniform(-180.0, 180.0)]))
        street = replace(street, mount_roll_deg=roll)
    return street


def random_camera(
    rng: np.random.Generator, baseline_m: float, most_pixels: int = _MOST_PIXELS
) -> tuple[int, int, StereoCamera]:
    """A camera of 40 to 120 deg: its focal length is about that of the canonical grid."""
    half = np.radians(0.5 * rng.uniform(40.0, 120.0))
    aspect = float(rng.choice([4 / 3, 16 / 10, 16 / 9, 3.3], p=[0.45, 0.15, 0.25, 0.15]))
    across = 2.0 * np.tan(half)
    most = np.sqrt(most_pixels * aspect) / across  # the largest focal length that may be had
    focal = float(np.clip(rng.uniform(290.0, 420.0), None, max(most, 290.0)))
    width = 4 * round(focal * across / 4.0)
    # A very wide camera loses rows rather than detail.
    height = 4 * round(min(width / aspect, most_pixels / width) / 4.0)
    centre = width * rng.uniform(0.47, 0.53), height * rng.uniform(0.46, 0.54)
    camera = Camera(focal, focal, float(centre[0]), float(centre[1]))
    return width, height, StereoCamera(camera, baseline_m)


def _mount(rng: np.random.Generator, motion: Carrier) -> tuple[float, float, float]:
    """Yaw, pitch and roll in degrees: most are nearly level, some tilted or on the side."""
    yaw, pitch, roll = rng.normal(0.0, 2.0, 3)
    draws = rng.random(3)
    if draws[0] < 0.15 and motion != "hand":
        yaw = rng.uniform(-180.0, 180.0)
    if draws[1] < 0.35 and motion != "hand":
        pitch = rng.uniform(-45.0, 10.0)
    if draws[2] < 0.2:
        roll = rng.choice([90.0, -90.0, 180.0, rng.uniform(-180.0, 180.0)])
    return float(yaw), float(pitch), float(roll)


def _shutter_s(rng: np.random.Generator, rate_hz: float, chance: float) -> float:
    exposure = float(rng.uniform(0.002, min(0.025, 0.8 / rate_hz)))
    return exposure if rng.random() < chance else 0.0


def _sensor(rng: np.random.Generator, rate_hz: float) -> SensorConfig:
    draws = rng.random(4)
    return SensorConfig(
        vignetting=float(rng.uniform(0.0, 0.8)) if draws[0] < 0.4 else 0.0,
        readout_s=float(rng.uniform(0.003, min(0.03, 0.9 / rate_hz))) if draws[1] < 0.25 else 0.0,
        exposure_step=float(rng.uniform(0.05, 0.5)) if draws[2] < 0.3 else 0.0,
        jpeg_quality=int(rng.integers(40, 96)) if draws[3] < 0.35 else 0,
    )


# --- worlds to show ------------------------------------------------------------------------------


def _shown(place: Place, motion: Carrier, seed: int, rate_hz: float) -> BuildingConfig:
    return BuildingConfig(
        seed=seed,
        frames=round(30.0 * rate_hz),
        rate_hz=rate_hz,
        width=640,
        height=480,
        camera=StereoCamera(Camera(380.0, 380.0, 319.5, 239.5), 0.12),
        place=place,
        motion=motion,
        clutter=0.8,
        people=2,
        blank=0.2,
        shutter_s=0.004,
        noise_sigma=1.5,
        sensor=SensorConfig(vignetting=0.3),
    )


NAMED_WORLDS = {
    "office": _shown("office", "robot", 3, 10.0),
    "hall": _shown("hall", "drone", 5, 20.0),
    "desk": _shown("desk", "hand", 4, 20.0),
    "car_park": _shown("car_park", "skid", 2, 10.0),
}
