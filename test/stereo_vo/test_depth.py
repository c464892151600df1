"""RGB-D odometry: sampling of depth, rendered rooms with holes and noise, a hand-held Kinect."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hydranet_ros.datasets.depth_images import read_depth
from hydranet_ros.datasets.source import open_source
from hydranet_ros.datasets.tum import DEPTH_PER_M, open_listed
from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame, StereoCamera
from hydranet_ros.geometry.estimates import compose_with_covariance
from hydranet_ros.simulation import Building, BuildingConfig
from hydranet_ros.stereo_vo.depth import inverse_depth
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.stereo_vo.result import Lost, VOResult


def chained(results: list[VOResult], T_w_c: np.ndarray, length: int) -> np.ndarray:
    """(blocks, 2): errors in metres and degrees over blocks of frames that do not overlap."""
    errors = []
    for first in range(0, len(results) - length, length):
        T = np.eye(4)
        for result in results[first + 1 : first + length + 1]:
            assert result.pose is not None, result.lost
            T = result.pose.T_2_1 @ T
        true = lie.se3_inverse(T_w_c[first + length]) @ T_w_c[first]
        wrong = lie.se3_inverse(T) @ true
        angle = np.degrees(np.linalg.norm(lie.so3_log(wrong[:3, :3])))
        errors.append([np.linalg.norm(wrong[:3, 3]), angle])
    return np.array(errors)


def nees(results: list[VOResult], T_w_c: np.ndarray, length: int) -> float:
    """The mean over blocks of frames that do not overlap, covariances summed."""
    found = []
    for first in range(0, len(results) - length, length):
        T, Sigma = np.eye(4), np.zeros((6, 6))
        for result in results[first + 1 : first + length + 1]:
            assert result.pose is not None, result.lost
            T, Sigma = compose_with_covariance(result.pose.T_2_1, result.pose.Sigma_2_1, T, Sigma)
        true = lie.se3_inverse(T_w_c[first + length]) @ T_w_c[first]
        error = lie.se3_log(T @ lie.se3_inverse(true))
        found.append(float(error @ np.linalg.solve(Sigma, error)))
    return float(np.mean(found))


def test_inverse_depth_of_a_plane_is_exact_and_edges_and_holes_are_left_out() -> None:
    v, u = np.mgrid[0:40, 0:60].astype(float)
    plane = 1.0 / (0.4 + 0.001 * u - 0.002 * v)
    depth = plane.astype(np.float32)
    depth[:, 30:] *= 1.2
    depth[5, 5], depth[6, 20] = 0.0, np.nan
    pixels = np.array([[10.3, 20.7], [29.5, 10.0], [4.6, 4.9], [19.8, 6.2], [59.0, 39.0]])
    found, known = inverse_depth(depth, pixels)
    assert known.tolist() == [True, False, False, False, True]
    assert found[0] == pytest.approx(0.4 + 0.0103 - 0.0414, rel=1e-5)
    assert (found[~known] == 0.0).all()


@pytest.fixture(scope="module")
def room() -> tuple[StereoCamera, list[Frame], np.ndarray]:
    """A room seen by a robot: depth with the noise of a Kinect, and holes."""
    camera = StereoCamera(Camera(260.0, 260.0, 160.0, 120.0), 0.075)
    world = Building(
        BuildingConfig(frames=21, seed=5, width=320, height=240, camera=camera, people=0)
    )
    rng, frames = np.random.default_rng(0), []
    for k, each in enumerate(world):
        z = np.nan_to_num(np.asarray(world.depth(k), dtype=np.float64))
        z += 0.0015 * z**2 * rng.standard_normal(z.shape)
        z[rng.random(z.shape) < 0.02] = 0.0
        z[z > 6.0] = 0.0
        frames.append(Frame(each.stamp_ns, each.left, None, z.astype(np.float32)))
    return camera, frames, np.array([each.T_w_c for each in world])


def test_motion_in_a_room(room: tuple[StereoCamera, list[Frame], np.ndarray]) -> None:
    camera, frames, T_w_c = room
    vo = StereoVO(camera)
    results = [vo.update(frame) for frame in frames]
    assert results[0].lost is Lost.INITIALISING
    metres, degrees = chained(results, T_w_c, 10).T
    assert metres.max() < 0.01
    assert degrees.max() < 0.2


def test_frames_without_depth_are_bridged_and_kinds_do_not_mix(
    room: tuple[StereoCamera, list[Frame], np.ndarray],
) -> None:
    camera, frames, _ = room
    vo, first = StereoVO(camera), frames[0]
    nothing = np.zeros_like(first.depth)
    assert vo.update(Frame(1, first.left, None, nothing)).lost is Lost.NO_DEPTH
    assert vo.update(Frame(2, first.left, None, first.depth)).lost is Lost.INITIALISING
    with pytest.raises(ValueError, match="depth all, or none"):
        vo.update(Frame(3, frames[1].left, frames[1].left))
    with pytest.raises(ValueError, match="one size"):
        vo.update(Frame(4, first.left, None, nothing[:-1]))
    vo.reset()
    with pytest.raises(ValueError, match="or depth"):
        vo.update(Frame(5, first.left))


# --- files ---------------------------------------------------------------------------------------


def test_a_hand_held_kinect(data: Path) -> None:
    folder = data / "tum" / "fr1_xyz"
    if not folder.is_dir():
        pytest.skip(f"no TUM sequence at {folder}")
    source = open_source(str(folder), cameras="rgbd")
    assert isinstance(source.camera, StereoCamera)
    assert source.T_w_c is not None
    vo = StereoVO(source.camera)
    results = [vo.update(frame) for frame in source]
    assert sum(result.lost is not None for result in results) == 1
    metres, degrees = chained(results, source.T_w_c, 10).mean(axis=0)
    assert metres < 0.02
    assert degrees < 0.55  # 0.38 against a truth that is 15 ms later
    # 6 is ideal; the truth jitters by 0.2 degrees from frame to frame.
    assert nees(results, source.T_w_c, 1) < 14.0
    assert 2.0 < nees(results, source.T_w_c, 10) < 10.0


def test_depth_images_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "depth.png"
    cv2.imwrite(str(path), np.full((4, 6), 7500, dtype=np.uint16))
    np.testing.assert_allclose(read_depth(path, (4, 6), DEPTH_PER_M), 1.5)
    with pytest.raises(FileError, match="6x4 pixels, its image 5x4"):
        read_depth(path, (4, 5), DEPTH_PER_M)
    cv2.imwrite(str(path), np.zeros((4, 6), dtype=np.uint8))
    with pytest.raises(FileError, match="16-bit grey PNG"):
        read_depth(path, (4, 6), DEPTH_PER_M)


def test_folders_without_depth_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HydraNetError, match="has no depth"):
        open_source(str(tmp_path), cameras="rgbd")
    (tmp_path / "rgb.txt").write_text("1.0 a.png\n")
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((4, 6), dtype=np.uint8))
    (tmp_path / "camera.txt").write_text("500 500 3 2\n")
    with pytest.raises(FileError, match=r"depth\.txt: is missing"):
        open_listed(tmp_path, cameras="rgbd")
    (tmp_path / "depth.txt").write_text("1.5 b.png\n")
    with pytest.raises(FileError, match="no stamp near"):
        open_listed(tmp_path, cameras="rgbd")
