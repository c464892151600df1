"""A small deterministic renderer of a textured street, seen by a moving stereo camera.

    street = Street(StreetConfig(seed=1))
    frame = street.render(0)            # left, right: uint8; T_w_c, stamp_ns
    street.depth(0), street.flow(0, 1)  # exact, by the same geometry as the images
"""

from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Flow, Street, StereoFrame

__all__ = ["Flow", "StereoFrame", "Street", "StreetConfig"]
