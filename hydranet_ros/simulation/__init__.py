"""A small deterministic renderer of streets and buildings, seen by a moving stereo camera.

`Street(StreetConfig(seed=1))`, or `Building(BuildingConfig(place="office"))`, gives `render(0)`
with left and right images, their pose and stamp, and `depth(0)` and `flow(0, 1)`, which are exact
because they come from the same geometry.
"""

from hydranet_ros.simulation.building import Building
from hydranet_ros.simulation.config import BuildingConfig, StreetConfig
from hydranet_ros.simulation.street import LEFT, RIGHT, ExactFlow, StereoFrame, Street

__all__ = [
    "LEFT",
    "RIGHT",
    "Building",
    "BuildingConfig",
    "ExactFlow",
    "StereoFrame",
    "Street",
    "StreetConfig",
]
