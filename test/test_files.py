"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydranet_ros.errors import FileError
from hydranet_ros.files import whole_file


def write_half(path: Path) -> None:
    with whole_file(path) as file:
        file.write(b"ne")
        raise KeyboardInterrupt


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with whole_file(path) as file:
        file.write(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_half(path)
    assert path.read_bytes() == b"old"
    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(FileError, match="nowhere/file: cannot be written"),
        whole_file(tmp_path / "nowhere" / "file"),
    ):
        pass
