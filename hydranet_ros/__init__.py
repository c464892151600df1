"""Rotation from a camera with a covariance you can trust, and its fusion with visual odometry.

    import hydranet_ros as hn

    gyro = hn.VisualGyro(hn.Camera(718.9, 718.9, 607.2, 185.2))
    rotation = gyro.between(image_1, image_2)  # C_2_1 with Sigma_2_1

The names below are loaded when they are used: importing the package loads neither NumPy nor torch
nor ROS.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"  # the one place: setup.py reads it, the others are held to it

# Where each public name is; `lie` is a module itself.
_PLACES = {
    "Camera": "geometry.camera",
    "StereoCamera": "geometry.camera",
    "Frame": "geometry.camera",
    "RelativeRotation": "geometry.estimates",
    "RelativePose": "geometry.estimates",
    "VisualGyro": "gyro.visual_gyro",
    "GyroConfig": "gyro.visual_gyro",
    "StereoVO": "stereo_vo.odometry",
    "StereoVOConfig": "stereo_vo.config",
    "Fusion": "fusion.fusion",
    "FusionConfig": "fusion.config",
    "Pipeline": "pipeline",
    "PipelineConfig": "pipeline",
    "Odometer": "geometry.odometer",
    "Trajectory": "geometry.trajectory",
    "read_trajectory": "geometry.trajectory",
    "open_source": "datasets.source",
    "evaluate": "evaluation.record",
    "HydraNetError": "errors",
    "lie": "geometry.lie",
}

__all__ = [
    "Camera",
    "Frame",
    "Fusion",
    "FusionConfig",
    "GyroConfig",
    "HydraNetError",
    "Odometer",
    "Pipeline",
    "PipelineConfig",
    "RelativePose",
    "RelativeRotation",
    "StereoCamera",
    "StereoVO",
    "StereoVOConfig",
    "Trajectory",
    "VisualGyro",
    "evaluate",
    "lie",
    "open_source",
    "read_trajectory",
]

if TYPE_CHECKING:
    from hydranet_ros.datasets.source import open_source
    from hydranet_ros.errors import HydraNetError
    from hydranet_ros.evaluation.record import evaluate
    from hydranet_ros.fusion.config import FusionConfig
    from hydranet_ros.fusion.fusion import Fusion
    from hydranet_ros.geometry import lie
    from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
    from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
    from hydranet_ros.geometry.odometer import Odometer
    from hydranet_ros.geometry.trajectory import Trajectory, read_trajectory
    from hydranet_ros.gyro.visual_gyro import GyroConfig, VisualGyro
    from hydranet_ros.pipeline import Pipeline, PipelineConfig
    from hydranet_ros.stereo_vo.config import StereoVOConfig
    from hydranet_ros.stereo_vo.odometry import StereoVO


def __getattr__(name: str) -> Any:
    """Load a public name, once."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_PLACES[name]}")
    value = module if name == "lie" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
