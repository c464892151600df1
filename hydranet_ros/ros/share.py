"""Find the files of launch/ and config/, installed or in the source tree."""

from __future__ import annotations

from pathlib import Path

from ament_index_python.packages import PackageNotFoundError, get_package_share_directory

from hydranet_ros.errors import FileError

PACKAGE = "hydranet_ros"


def share_file(name: str) -> Path:
    """The path of, say, `config/fastdds.xml`."""
    beside = Path(__file__).resolve().parents[2] / name
    if beside.is_file():  # an editable install, or the source tree itself
        return beside
    try:
        installed = Path(get_package_share_directory(PACKAGE)) / name
    except PackageNotFoundError:
        raise FileError(name, f"{PACKAGE} is not in the ament index: install it again") from None
    if not installed.is_file():
        raise FileError(installed, f"is missing: install {PACKAGE} again")
    return installed
