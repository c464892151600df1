"""Files are written whole or not at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from hydranet_ros.errors import FileError
from hydranet_ros.files import (
    image_size,
    read_lines,
    remove_left_behind,
    remove_unfinished,
    whole_file,
    whole_folder,
)


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


def test_a_folder_of_results_appears_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")

    def write(fails: bool) -> None:
        with whole_folder(tmp_path) as folder:
            (folder / "plots").mkdir()
            (folder / "plots" / "a.png").write_text("a")
            (folder / "old.txt").write_text("new")
            if fails:
                raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match="cannot be written: No space left on device"):
        write(fails=True)
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"]
    assert (tmp_path / "old.txt").read_text() == "old"
    write(fails=False)
    assert (tmp_path / "old.txt").read_text() == "new"
    assert {path.name for path in tmp_path.rglob("*")} == {"old.txt", "plots", "a.png"}


def test_what_killed_processes_were_writing_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, ours, other = (
        tmp_path / f".a.npz.{ended.pid}",
        tmp_path / f".a.npz.{os.getpid()}",
        tmp_path / ".hidden.txt",
    )
    for path in (dead, ours, other):
        path.touch()
    remove_left_behind(tmp_path)
    assert set(tmp_path.iterdir()) == {ours, other}
    with whole_file(tmp_path / "b") as file:
        file.write(b"half")
        remove_unfinished()
        assert set(tmp_path.iterdir()) == {ours, other}
        (tmp_path / f".b.{os.getpid()}").touch()  # to be put in place at the end


def test_lines_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\nthree\x0cstill three\n")
    assert list(read_lines(path)) == [(1, "one"), (2, ""), (3, "three\x0cstill three")]
    path.write_bytes(b"a\n" + b"b" * 100_000)
    with pytest.raises(FileError, match=r"a\.txt:2: is longer"):
        list(read_lines(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="is not a text file"):
        list(read_lines(path))


IMAGE = np.random.default_rng(0).integers(0, 255, (31, 47, 3), dtype=np.uint8)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize("pixels", [IMAGE, IMAGE[..., 0]], ids=["colour", "grey"])
@pytest.mark.parametrize("progressive", [0, 1])
def test_the_size_of_an_image_is_in_its_header(
    suffix: str, pixels: np.ndarray, progressive: int
) -> None:
    options = [cv2.IMWRITE_JPEG_PROGRESSIVE, progressive] if suffix == ".jpg" else []
    data = cv2.imencode(suffix, pixels, options)[1].tobytes()
    assert image_size(data) == (47, 31)
    assert image_size(memoryview(data + bytes(100))) == (47, 31)  # some cameras pad
    for end in (0, 3, 20, len(data) // 2, len(data) - 3):
        with pytest.raises(ValueError, match=r"cut off|cannot be read"):
            image_size(data[:end])


def test_images_beyond_all_bounds() -> None:
    data = bytearray(cv2.imencode(".jpg", IMAGE)[1].tobytes())
    at = data.find(b"\xff\xc0")
    data[at + 5 : at + 9] = b"\xff\xdc\xff\xdc"
    with pytest.raises(ValueError, match="has 65500x65500 pixels, more than 32 million"):
        image_size(bytes(data))
    data[at + 5 : at + 9] = b"\0\0\0\x01"
    with pytest.raises(ValueError, match="it is empty"):
        image_size(bytes(data))
    with pytest.raises(ValueError, match="PNG and JPEG can"):
        image_size(cv2.imencode(".bmp", IMAGE)[1].tobytes())
