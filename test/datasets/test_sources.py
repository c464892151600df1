from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.datasets.source import SimulatedStreet, open_source
from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.geometry.camera import Camera
from hydranet_ros.geometry.trajectory import write_kitti

CALIBRATION = """\
P0: 700 0 60 0 0 700 40 0 0 0 1 0
P1: 700 0 60 -378 0 700 40 0 0 0 1 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five frames of noise in KITTI's layout, as sequences/07."""
    folder = tmp_path / "sequences" / "07"
    rng = np.random.default_rng(0)
    for name in ("image_0", "image_1"):
        (folder / name).mkdir(parents=True)
        for i in range(5):
            image = rng.integers(0, 255, (80, 120), dtype=np.uint8)
            cv2.imwrite(str(folder / name / f"{i:06d}.png"), image)
    (folder / "calib.txt").write_text(CALIBRATION)
    (folder / "times.txt").write_text("".join(f"{0.1 * i:.6e}\n" for i in range(5)))
    return folder


def poses(count: int) -> np.ndarray:
    T = np.tile(np.eye(4), (count, 1, 1))
    T[:, 2, 3] = np.arange(count)
    return T


def test_frames_are_what_the_files_hold(folder: Path) -> None:
    source = KittiFolder(folder)
    frames = list(source)
    assert len(source) == len(frames) == 5
    assert [frame.stamp_ns for frame in frames] == [0, 10**8, 2 * 10**8, 3 * 10**8, 4 * 10**8]
    right = cv2.imread(str(folder / "image_1" / "000003.png"), cv2.IMREAD_GRAYSCALE)
    np.testing.assert_array_equal(frames[3].right, right)
    assert source.camera.baseline_m == pytest.approx(0.54)
    assert source.T_w_c is None


def test_jpeg_images_and_a_limit(folder: Path) -> None:
    for path in sorted(folder.glob("image_*/*.png")):
        cv2.imwrite(str(path.with_suffix(".jpg")), cv2.imread(str(path)))
        path.unlink()
    assert len(list(KittiFolder(folder, max_frames=3))) == 3


def test_one_camera_needs_no_right_images(folder: Path) -> None:
    pair = list(KittiFolder(folder, cameras="mono"))
    assert all(frame.right is not None for frame in pair)  # where there are both, both are read
    shutil.rmtree(folder / "image_1")
    with pytest.raises(FileError, match="image_1: is missing"):
        open_source(str(folder))
    source = open_source(str(folder), cameras="mono")
    assert source.camera == Camera(700.0, 700.0, 60.0, 40.0)
    assert len(source) == 5
    for one, both in zip(source, pair, strict=True):
        assert (one.stamp_ns, one.right) == (both.stamp_ns, None)
        np.testing.assert_array_equal(one.left, both.left)


def test_ground_truth_is_looked_for_in_order(folder: Path, tmp_path: Path) -> None:
    beside = tmp_path / "poses"
    beside.mkdir()
    write_kitti(beside / "07.txt", poses(5))
    found = KittiFolder(folder).T_w_c
    assert found is not None
    np.testing.assert_allclose(found, poses(5))
    write_kitti(folder / "poses.txt", 2 * poses(5) - np.eye(4))
    inside = KittiFolder(folder).T_w_c
    assert inside is not None
    assert inside[4, 2, 3] == pytest.approx(8.0)
    write_kitti(tmp_path / "mine.txt", 3 * poses(9) - 2 * np.eye(4))
    named = KittiFolder(folder, tmp_path / "mine.txt", max_frames=4).T_w_c
    assert named is not None
    assert named[:, 2, 3].tolist() == [0.0, 3.0, 6.0, 9.0]


def break_it(folder: Path, how: str) -> None:
    if how == "missing right":
        (folder / "image_1" / "000002.png").unlink()
    elif how == "no folder":
        shutil.rmtree(folder / "image_0")
    elif how == "no images":
        for path in folder.glob("image_0/*"):
            path.unlink()
    elif how == "no P1":
        (folder / "calib.txt").write_text(CALIBRATION.splitlines()[0])
    elif how == "swapped":
        (folder / "calib.txt").write_text(CALIBRATION.replace("-378", "378"))
    elif how == "no times":
        (folder / "times.txt").unlink()
    elif how == "few times":
        (folder / "times.txt").write_text("0\n0.1\n")
    elif how == "times back":
        (folder / "times.txt").write_text("0\n0.1\n0.05\n0.3\n0.4\n")
    elif how == "bad time":
        (folder / "times.txt").write_text("0\nx\n0.2\n0.3\n0.4\n")
    elif how == "few poses":
        write_kitti(folder / "poses.txt", poses(2))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("missing right", "image_1/000002: is missing"),
        ("no folder", "image_0: is missing: a KITTI folder has image_0 and image_1"),
        ("no images", "image_0: has no images"),
        ("no P1", "calib.txt: has no line 'P1:'"),
        ("swapped", "calib.txt: "),
        ("no times", "times.txt: cannot be read"),
        ("few times", "times.txt: has 2 times for 5 frames"),
        ("times back", "times.txt:3: times must increase"),
        ("bad time", "times.txt:2: could not convert"),
        ("few poses", "poses.txt: has 2 poses for 5 frames"),
    ],
)
def test_broken_folders_are_refused_before_anything_is_read(
    folder: Path, how: str, why: str
) -> None:
    break_it(folder, how)
    with pytest.raises(FileError) as caught:
        KittiFolder(folder)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_and_odd_images_are_named(folder: Path) -> None:
    (folder / "image_0" / "000001.png").write_bytes(b"not an image")
    with pytest.raises(FileError, match=r"000001\.png: cannot be read as an image"):
        list(KittiFolder(folder))
    cv2.imwrite(str(folder / "image_0" / "000001.png"), np.zeros((80, 100), np.uint8))
    with pytest.raises(FileError, match=r"000001\.png: has 100x80 pixels"):
        list(KittiFolder(folder))


def test_the_street_is_a_source() -> None:
    source = SimulatedStreet(max_frames=3)
    frames = list(source)
    assert len(frames) == len(source) == 3
    assert frames[2].stamp_ns == source.stamps_ns[2]
    assert frames[0].left.shape == frames[0].right.shape
    assert source.T_w_c is not None
    np.testing.assert_array_equal(source.T_w_c[0], np.eye(4))


def test_names_that_are_no_source_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HydraNetError, match="nowhere: is not a folder"):
        open_source(str(tmp_path / "nowhere"))
    with pytest.raises(HydraNetError, match="knows its own poses"):
        open_source("street", poses="mine.txt")
