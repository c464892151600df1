"""Install hydranet_ros with pip (wheel or editable) or with colcon (ament_python)."""

from __future__ import annotations

from pathlib import Path

from setuptools import Distribution, find_packages, setup

NAME = "hydranet_ros"
NODES = ["hydranet_node", "stereo_vo_node", "fusion_node", "player_node", "recorder_node"]
MESSAGES = ["sensor", "geometry", "nav", "std", "visualization", "diagnostic"]


class DistributionWithData(Distribution):
    """Let editable installs register the ament index marker and the share files too.

    setuptools asks `has_data` before it installs `data_files` into an editable wheel, but no
    distribution defines it.
    """

    def has_data(self) -> bool:
        """Whether there are data files to install."""
        return bool(self.data_files)


def share_files(folder: str, pattern: str) -> tuple[str, list[str]]:
    """data_files entry of share/hydranet_ros/FOLDER."""
    return f"share/{NAME}/{folder}", sorted(str(path) for path in Path(folder).glob(pattern))


def ros_wheels(rclpy: str, interfaces: str) -> list[str]:
    """The ROS 2 client library and messages of one distribution, as wheels."""
    messages = [f"ros-{name}-msgs=={interfaces}" for name in MESSAGES]
    return [f"ros-rclpy[fastrtps]=={rclpy}", *messages, f"ros-std-srvs=={interfaces}"]


setup(
    name=NAME,
    version="0.1.0",
    description="Rotation from a camera with a covariance you can trust, and its fusion with VO",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="hydranet_ros maintainers",
    author_email="maintainers@hydranet-ros.example",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=[NAME, f"{NAME}.*"]),
    package_data={NAME: ["py.typed", "weights/*.safetensors"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        share_files("launch", "*.launch.py"),
        share_files("config", "[!.]*"),
    ],
    install_requires=[
        "setuptools",
        "numpy>=1.26",
        "scipy>=1.11",
        "opencv-python-headless>=4.8,<5",
        "PyYAML>=6",
        "tqdm>=4.60",
    ],
    extras_require={
        "kilted": ros_wheels("9.1.2", "5.5.1"),
        "jazzy": ros_wheels("7.1.6", "5.3.6"),
        "learning": ["torch==2.13.0", "safetensors>=0.4"],
        "bags": ["rosbags>=0.11"],
        "report": ["matplotlib>=3.8"],
        "test": ["pytest<9", "hypothesis", "transforms3d"],
        "lint": ["ruff", "mypy", "types-PyYAML", "types-tqdm"],
    },
    entry_points={
        "console_scripts": [
            f"hydranet = {NAME}.cli.__main__:main",
            *(f"{node} = {NAME}.ros.{node}:main" for node in NODES),
        ]
    },
    distclass=DistributionWithData,
    zip_safe=False,
)
