from __future__ import annotations

import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from hydranet_ros.datasets.seven_scenes import find_scenes, read_scene
from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.experiments import seven_scenes
from hydranet_ros.geometry import lie
from hydranet_ros.gyro.device import set_threads


def write_sequence(folder: Path, frames: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for i in range(frames):
        image = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"frame-{i:06d}.color.png"), image)
        pose = lie.se3_exp(rng.normal(size=6))
        np.savetxt(folder / f"frame-{i:06d}.pose.txt", pose)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    folder = tmp_path / "chess"
    for number, frames in ((1, 10), (2, 20), (3, 5)):
        write_sequence(folder / f"seq-{number:02d}", frames, number)
    (folder / "TrainSplit.txt").write_text("sequence1 \nsequence2\n")
    (folder / "TestSplit.txt").write_text("sequence3\n")
    return folder


def test_splits_are_those_of_the_files(scene: Path) -> None:
    found = read_scene(scene, 32)
    assert {path.parent.name for path in found.test.paths} == {"seq-03"}
    assert (len(found.training), len(found.validation), len(found.test)) == (27, 3, 5)
    # The held-out frames are the last of each sequence: no neighbour on both sides of the cut.
    held = [(path.parent.name, path.name[6:12]) for path in found.validation.paths]
    assert held == [("seq-01", "000009"), ("seq-02", "000018"), ("seq-02", "000019")]


def test_targets_are_the_orientation_of_the_camera(scene: Path) -> None:
    found = read_scene(scene, 32)
    pose = np.loadtxt(scene / "seq-03" / "frame-000002.pose.txt")
    expected = lie.quaternion_from_matrix(pose[:3, :3].T)
    np.testing.assert_allclose(found.test.quaternions[2], expected, atol=1e-6)


def test_images_are_rgb_cropped_and_normalised(scene: Path) -> None:
    path = scene / "seq-03" / "frame-000000.color.png"
    image = np.zeros((48, 64, 3), dtype=np.uint8)
    image[:, 8:56] = (0, 0, 255)  # red, in OpenCV's order, exactly where the crop is
    cv2.imwrite(str(path), image)
    x = seven_scenes.FrameSamples(read_scene(scene, 24).test).inputs([0])[0]
    red = torch.tensor([(1.0 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225])
    torch.testing.assert_close(x, red[:, None, None].expand(3, 24, 24), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("TrainSplit.txt", "sequence1\nseq-2\n", "TrainSplit.txt:2: expected 'sequenceN'"),
        ("TestSplit.txt", "sequence9\n", "seq-09: is missing"),
        ("seq-03/frame-000001.pose.txt", "1 2 3", "expected 16 finite numbers, got 3"),
        ("seq-03/frame-000001.pose.txt", "2 " * 16, "is not a rigid-body pose"),
        ("seq-03/frame-000001.pose.txt", "a " * 16, "could not convert"),
    ],
)
def test_bad_files_are_named(scene: Path, file: str, content: str, message: str) -> None:
    (scene / file).write_text(content)
    with pytest.raises(HydraNetError, match=message):
        read_scene(scene, 32)


def test_scenes_are_found(scene: Path) -> None:
    assert find_scenes(scene.parent) == [scene]
    assert find_scenes(scene / "seq-01") == [scene / "seq-01"]


def test_a_missing_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"^{re.escape(str(tmp_path / 'chess'))}: is missing"):
        seven_scenes.run(seven_scenes.SevenScenesSettings(tmp_path))


def test_the_sample_end_to_end(data: Path) -> None:
    set_threads(1)
    settings = seven_scenes.SevenScenesSettings(data / "seven_scenes")
    outcome = seven_scenes.run(settings, quick=True)
    assert outcome.figures["seq.training_frames"] == 64
    assert outcome.figures["seq.test_frames"] == 20
    assert outcome.figures["seq.mean_deg"] < 30.0  # an untrained network is wrong by 100 deg
    assert np.isfinite(outcome.figures["seq.nll"])
    assert outcome.tables["scenes"][0]["scene"] == "seq"
