"""A small deterministic renderer of a textured street, seen by a moving stereo camera.

`Street(StreetConfig(seed=1))` gives `render(0)` with left and right images, their pose and stamp,
and `depth(0)` and `flow(0, 1)`, which are exact because they come from the same geometry.
"""

from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import LEFT, RIGHT, ExactFlow, StereoFrame, Street

__all__ = ["LEFT", "RIGHT", "ExactFlow", "StereoFrame", "Street", "StreetConfig"]
