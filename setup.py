"""Install hydranet_ros with pip (wheel or editable) or with colcon (ament_python)."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import Distribution, find_packages, setup

# isort: split
# distutils comes with setuptools, so its import has to be second.
from distutils.command.install_data import install_data

NAME = "hydranet_ros"
COMMAND = "hydranet"
README = Path(__file__).resolve().with_name("README.md")  # colcon may link setup.py alone
NODES = [
    *("hydranet_node", "stereo_vo_node", "fusion_node", "hydranet_all"),
    *("player_node", "recorder_node", "view_node"),
]
MESSAGES = ["sensor", "geometry", "nav", "std", "visualization", "diagnostic"]
FOR_COLCON = ("bin", [f"resource/{COMMAND}"])
LAUNCHER = """\
#!/bin/sh
# ros2 run looks for executables here; pip puts them into bin.
exec "$(dirname "$0")/../../bin/{name}" "$@"
"""


class DistributionWithData(Distribution):
    """Let editable installs register the ament index marker and the share files too.

    setuptools asks `has_data` before it installs `data_files` into an editable wheel, but no
    distribution defines it.
    """

    def has_data(self) -> bool:
        """Whether there are data files to install."""
        return bool(self.data_files)


class InstallData(install_data):
    """Install the share files, and the scripts where the installer puts none.

    A shell looks for `hydranet` in bin, `ros2 run` for nodes in lib/hydranet_ros. pip puts all
    scripts into bin, colcon all into lib/hydranet_ros (setup.cfg). Each gets the other half here.
    """

    def run(self) -> None:
        """Copy the files; write the launchers of a wheel."""
        by_pip = {"bdist_wheel", "editable_wheel"} & self.distribution.command_obj.keys()
        if by_pip:
            self.data_files = [entry for entry in self.data_files if entry != FOR_COLCON]
        super().run()
        if by_pip:
            for name in (COMMAND, *NODES):
                self._write_launcher(Path(self.install_dir, "lib", NAME, name))

    def _write_launcher(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LAUNCHER.format(name=path.name), encoding="utf-8")
        path.chmod(0o755)
        self.outfiles.append(str(path))


def version() -> str:
    """That of the package, read without importing it."""
    text = Path(__file__).resolve().with_name(NAME).joinpath("__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    assert found is not None, "hydranet_ros/__init__.py has no __version__"
    return found[1]


def share_files(folder: str, pattern: str) -> tuple[str, list[str]]:
    """data_files entry of share/hydranet_ros/FOLDER."""
    return f"share/{NAME}/{folder}", sorted(str(path) for path in Path(folder).glob(pattern))


def ros_wheels(rclpy: str, interfaces: str) -> list[str]:
    """The ROS 2 client library and messages of one distribution, as wheels.

    A distribution is a series of versions, and changes only the last number. The wheels ask for
    one another in the same way. The series must stay: a wider range would mix distributions.
    """
    messages = [f"ros-{name}-msgs~={interfaces}" for name in MESSAGES]
    return [f"ros-rclpy[fastrtps]~={rclpy}", *messages, f"ros-std-srvs~={interfaces}"]


setup(
    name=NAME,
    version=version(),
    description="Rotation from a camera with a covariance you can trust, and its fusion with VO",
    long_description=README.read_text(encoding="utf-8"),
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
        FOR_COLCON,
    ],
    install_requires=[
        "setuptools",
        "numpy>=1.26",
        "opencv-python-headless>=4.8,<5",
        "PyYAML>=6",
        "tqdm>=4.60",
        "safetensors>=0.4",
        "threadpoolctl>=3",
    ],
    extras_require={
        "kilted": ros_wheels("9.1.2", "5.5.1"),
        "jazzy": ros_wheels("7.1.6", "5.3.6"),
        "fast": ["numba>=0.59"],
        "learning": ["torch>=2.4"],
        "bags": ["rosbags>=0.11"],
        "report": ["matplotlib>=3.8"],
        "view": ["viser>=1.1,<2"],
        "docs": ["sphinx>=7", "myst-parser>=3", "furo"],
        "test": ["pytest<9", "pytest-xdist", "hypothesis", "transforms3d", "scipy>=1.11"],
        "lint": ["ruff", "mypy", "types-PyYAML", "types-tqdm"],
    },
    entry_points={
        "console_scripts": [
            f"{COMMAND} = {NAME}.cli.__main__:main",
            *(f"{node} = {NAME}.ros.{node}:main" for node in NODES),
        ]
    },
    cmdclass={"install_data": InstallData},
    distclass=DistributionWithData,
    zip_safe=False,
)
