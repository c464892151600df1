"""RGB-D sources: depth of messages and files, depth of a camera of its own, bags, 7-Scenes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

pytest.importorskip("rosbags", reason="bags need rosbags")

from rgbd_worlds import (
    COLOUR,
    FRAMES,
    HALF,
    LENS,
    T_COLOUR_DEPTH,
    depth_image,
    messages,
    room,
)

from hydranet_ros.datasets.bag_files import write_bag
from hydranet_ros.datasets.bag_messages import COMPRESSED_IMAGE, IMAGE, Message, pack
from hydranet_ros.datasets.camera_files import CameraFile
from hydranet_ros.datasets.depth_images import DepthCamera, depth_of_compressed, depth_of_raw
from hydranet_ros.datasets.rosbag import find_topics
from hydranet_ros.datasets.source import open_source
from hydranet_ros.errors import BadInput, FileError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.stereo_vo.odometry import StereoVO

DEPTH = np.array([[0.5, 0.0, 2.25], [7.001, 1.0, 0.0]])


def test_depth_of_messages_is_in_metres_and_holes_are_zero() -> None:
    for encoding, order in (("16UC1", "<"), ("32FC1", "<"), ("16UC1", ">"), ("32FC1", ">")):
        message = depth_image(0, "camera", DEPTH, encoding)
        kind = "u2" if encoding == "16UC1" else "f4"
        stored = np.frombuffer(message.data.tobytes(), dtype=f"<{kind}").reshape(2, 3)
        padded = np.zeros((2, 3 * stored.itemsize + 5), dtype=np.uint8)
        padded[:, :-5] = stored.astype(f"{order}{kind}").view(np.uint8).reshape(2, -1)
        message.step, message.data = padded.shape[1], padded.reshape(-1)
        message.is_bigendian = int(order == ">")
        found = depth_of_raw(message)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, DEPTH, rtol=1e-6)
    odd = np.array([[np.inf, -1.0, 1e7, 3.0]])
    np.testing.assert_array_equal(depth_of_raw(depth_image(0, "", odd, "32FC1")), [[0, 0, 0, 3]])
    message = depth_image(0, "", DEPTH, "16UC1")
    message.encoding = "8UC1"
    with pytest.raises(BadInput, match="depth has encoding '8UC1': use one of 16UC1"):
        depth_of_raw(message)


def test_compressed_depth() -> None:
    png = cv2.imencode(".png", np.round(DEPTH * 1e3).astype(np.uint16))[1].tobytes()
    for head, text in ((b"", "16UC1; png"), (bytes(12), "16UC1; compressedDepth png")):
        found = depth_of_compressed(SimpleNamespace(format=text, data=head + png))
        np.testing.assert_allclose(found, DEPTH, rtol=1e-6)
    # As compressed_depth_image_transport stores metres: q = a / z + b, 0 is a hole.
    a, b = 1000.0, 3.0
    with np.errstate(divide="ignore"):
        q = np.where(DEPTH > 0.0, np.round(a / DEPTH + b), 0.0).astype(np.uint16)
    data = struct.pack("<iff", 0, a, b) + cv2.imencode(".png", q)[1].tobytes()
    found = depth_of_compressed(SimpleNamespace(format="32FC1; compressedDepth png", data=data))
    np.testing.assert_allclose(found, DEPTH, rtol=5e-3)
    for text, wrong in (("16UC1; compressedDepth rvl", data[:12] + b"rubbish"), ("png", b"")):
        with pytest.raises(BadInput, match="no PNG"):
            depth_of_compressed(SimpleNamespace(format=text, data=wrong))


@pytest.mark.parametrize("lens", [HALF, Camera(293.0, 293.0, 158.0, 118.0)])
def test_a_plane_is_registered_exactly(lens: Camera) -> None:
    """Seen through another camera, turned and moved, finer or coarser than the image's."""
    shape = (120, 160) if lens is HALF else (240, 320)
    T = lie.se3_exp([-0.025, 0.004, 0.01, 0.02, -0.01, 0.03])
    normal, distance = np.array([0.3, 0.4, 0.87]), 1.9

    def plane(camera: Camera, size: tuple[int, int], n: np.ndarray, d: float) -> np.ndarray:
        v, u = np.mgrid[: size[0], : size[1]]
        rays = camera.normalise(np.stack([u, v], axis=-1))
        return d / (rays @ n[:2] + n[2])

    depth = plane(lens, shape, normal, distance).astype(np.float32)
    file = CameraFile(Path("depth"), lens.matrix.ravel().tolist(), [])
    found = DepthCamera(file.raw_camera(), T, LENS).registered(depth, (240, 320))
    turned = T[:3, :3] @ normal
    true = plane(LENS, (240, 320), turned, distance + turned @ T[:3, 3])
    seen = found > 0.0
    assert seen[30:-30, 30:-30].mean() > 0.99
    np.testing.assert_allclose(found[seen], true[seen], rtol=2e-5)


def test_of_two_surfaces_the_nearer_is_registered() -> None:
    depth = np.full((240, 320), 4.0, dtype=np.float32)
    depth[:, 100:180] = 1.0
    file = CameraFile(Path("depth"), LENS.matrix.ravel().tolist(), [])
    found = DepthCamera(file.raw_camera(), T_COLOUR_DEPTH, LENS).registered(depth, (240, 320))
    row = found[120]
    # Near things move by 260 * 0.05 / 1 = 13 pixels, far ones by 3.
    assert (row[87:167] == 1.0).all()
    assert (row[:86] == 4.0).all()
    assert (row[168:176] == 0.0).all()  # behind the near one for the depth camera
    assert (row[178:316] == 4.0).all()


# --- bags ----------------------------------------------------------------------------------------


def driven(source: object, T_w_c: np.ndarray) -> tuple[float, float]:
    """Metres and degrees by which the end is off."""
    assert isinstance(source.camera, StereoCamera)
    vo, T = StereoVO(source.camera), np.eye(4)
    results = [vo.update(frame) for frame in source]
    for result in results[1:]:
        assert result.pose is not None
        T = result.pose.T_2_1 @ T
    wrong = T @ lie.se3_inverse(lie.se3_inverse(T_w_c[-1]) @ T_w_c[0])
    return float(np.linalg.norm(wrong[:3, 3])), float(
        np.degrees(np.linalg.norm(lie.so3_log(wrong[:3, :3])))
    )


@pytest.mark.parametrize(("registered", "encoding"), [(True, "16UC1"), (False, "32FC1")])
def test_a_bag_with_depth(tmp_path: Path, registered: bool, encoding: str) -> None:
    write_bag(tmp_path / "bag", messages(registered, encoding, 500_000), "mcap")
    source = open_source(str(tmp_path / "bag"), cameras="rgbd")
    assert len(source) == FRAMES
    T_w_c = room().T_w_c @ (T_COLOUR_DEPTH if registered else np.eye(4))
    metres, degrees = driven(source, T_w_c)
    assert metres < 0.005  # of 0.37 m
    assert degrees < 0.15


def changed(stream: Iterator[Message], leave_out: str = "") -> list[Message]:
    return [each for each in stream if each.topic != leave_out]


def test_what_a_bag_lacks_is_told(tmp_path: Path) -> None:
    own = list(messages(False, "16UC1"))
    for number, (missing, text) in enumerate(
        [
            ("/tf_static", "does not tell where 'camera_depth_optical_frame' is"),
            ("/camera/depth/camera_info", "and has no camera_info"),
            ("/camera/depth/image_raw", "has no camera with depth: choose --left-topic"),
        ]
    ):
        write_bag(tmp_path / str(number), changed(iter(own), missing), "mcap")
        with pytest.raises(FileError, match=text):
            open_source(str(tmp_path / str(number)), cameras="rgbd")
    small = [
        pack(each.topic, IMAGE, each.stamp_ns, depth_image(each.stamp_ns, COLOUR, DEPTH, "16UC1"))
        if each.topic.endswith("depth/image_raw")
        else each
        for each in own
    ]
    write_bag(tmp_path / "small", small, "mcap")
    with pytest.raises(FileError, match="depth has 3x2 pixels, its image 320x240"):
        list(open_source(str(tmp_path / "small"), cameras="rgbd"))


def test_registered_depth_and_colour_are_chosen() -> None:
    info = "sensor_msgs/msg/CameraInfo"
    topics = {
        "/camera/color/image_raw": IMAGE,
        "/camera/color/image_raw/compressed": COMPRESSED_IMAGE,
        "/camera/color/camera_info": info,
        "/camera/infra1/image_rect_raw": IMAGE,
        "/camera/depth/image_rect_raw": IMAGE,
        "/camera/depth/camera_info": info,
        "/camera/aligned_depth_to_color/image_raw": IMAGE,
        "/camera/aligned_depth_to_color/image_raw/compressedDepth": COMPRESSED_IMAGE,
    }
    found = find_topics("bag", topics, cameras="rgbd")
    assert found.images == ("/camera/color/image_raw", "/camera/aligned_depth_to_color/image_raw")
    assert found.infos == ("/camera/color/camera_info", None)
    chosen = find_topics("bag", topics, right="/camera/depth/image_rect_raw", cameras="rgbd")
    assert chosen.infos[1] == "/camera/depth/camera_info"


# --- 7-Scenes ------------------------------------------------------------------------------------


def test_seven_scenes_with_depth(tmp_path: Path) -> None:
    """Depth is of the Kinect's own camera: 2.5 cm beside the colour one, with another lens."""
    z, size = 2.0, (480, 640)
    v, u = np.mgrid[: size[0], : size[1]].astype(float)

    def wall(focal: float, x_m: float) -> np.ndarray:
        """What a camera at x_m sees of a wall with a round patch in front of it, at 1 m."""
        x, y = (u - 320.0) / focal, (v - 240.0) / focal
        return np.where((x + x_m) ** 2 + y**2 < 0.2**2, 1.0, z)

    depth = wall(585.0, 0.0)
    stored = np.round(depth * 1e3).astype(np.uint16)
    stored[:5] = 65535
    cv2.imwrite(str(tmp_path / "frame-000000.depth.png"), stored)
    cv2.imwrite(str(tmp_path / "frame-000000.color.png"), np.full((*size, 3), 90, np.uint8))
    source = open_source(str(tmp_path), cameras="rgbd")
    (frame,) = source
    assert source.camera.left.fx == 525.0
    true = wall(525.0, 0.025)
    known = frame.depth > 0.0
    assert known[40:-40, 40:-40].mean() > 0.97
    agree = np.abs(frame.depth - true)[known] < 1e-3
    assert agree.mean() > 0.995  # but for the edge of the patch
    assert np.abs(frame.depth - depth)[known].max() > 0.9  # where it is not registered
    (tmp_path / "frame-000000.depth.png").unlink()
    with pytest.raises(FileError, match=r"depth\.png: is missing"):
        open_source(str(tmp_path), cameras="rgbd")
