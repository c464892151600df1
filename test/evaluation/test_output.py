"""Folders of results: every file whole or not there, the same bytes for the same input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hydranet_ros.errors import FileError
from hydranet_ros.evaluation.output import ResultsFolder
from hydranet_ros.geometry.trajectory import read_trajectory

POSES = np.tile(np.eye(4), (3, 1, 1))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path / "a" / "b")
    folder.trajectory("vo", POSES, [0, 10**8, 2 * 10**8])
    for name in ("vo.txt", "vo.tum"):
        np.testing.assert_allclose(read_trajectory(folder.path / name).T_w_c, POSES)
    path = folder.json("metrics.json", {"ate_m": 1.5, "seg_pct": None})
    assert json.loads(path.read_text()) == {"ate_m": 1.5, "seg_pct": None}
    table = folder.table("rotation.csv", ["stamp", "w"], [[1, "0.5"], [2, "1"]])
    assert table.read_bytes() == b"stamp,w\r\n1,0.5\r\n2,1\r\n"
    assert {each.name for each in folder.path.iterdir()} == {
        "vo.txt",
        "vo.tum",
        "metrics.json",
        "rotation.csv",
    }


def test_what_cannot_be_finished_leaves_the_old_file(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    folder.json("metrics.json", {"frames": 3})
    folder.trajectory("vo", POSES, [0, 1, 2])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(TypeError):
        folder.json("metrics.json", {"frames": object()})
    with pytest.raises(ValueError, match="zip"):
        folder.trajectory("vo", POSES, [0, 1])  # a stamp is missing: the TUM file is not written
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file: cannot be written: File exists"):
        ResultsFolder(tmp_path / "file")
    with pytest.raises(FileError, match="cannot be written"):
        ResultsFolder(tmp_path / "file" / "within")
    folder = ResultsFolder(tmp_path / "folder")
    (folder.path / "metrics.json").mkdir()
    with pytest.raises(FileError, match=r"metrics\.json: cannot be written"):
        folder.json("metrics.json", {})
    assert [path.name for path in folder.path.iterdir()] == ["metrics.json"]
