"""RGB-D and raw pairs over topics: the node gives what a bag with the messages gives offline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")
pytest.importorskip("rosbags", reason="bags need rosbags")

from nav_msgs.msg import Odometry
from rclpy.serialization import deserialize_message
from rgbd_worlds import FRAMES, T_COLOUR_DEPTH, messages, room
from ros.in_process import counted, overrides, spinning
from ros.node_processes import Bench, patiently
from sensor_msgs.msg import CameraInfo, Image

from hydranet_ros.datasets import bag_messages as ros
from hydranet_ros.datasets.bag_files import write_bag
from hydranet_ros.datasets.bag_messages import CAMERA_INFO, IMAGE, Message, pack
from hydranet_ros.datasets.rigs import TURNED
from hydranet_ros.datasets.source import open_source
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.odometer import OdometryPath
from hydranet_ros.ros.conversions import pose_matrix, stamp_ns
from hydranet_ros.ros.extrinsics import FramesConfig
from hydranet_ros.ros.stereo_vo_node import StereoVONode
from hydranet_ros.simulation import Street, StreetConfig
from hydranet_ros.stereo_vo.odometry import StereoVO

REPLAY = {"input__reliability": "reliable", "input__depth": 1000, "input__queue": 1000}
T_b_c = FramesConfig().T_b_c
KINDS = {"image_raw": Image, "camera_info": CameraInfo}
APART_NS = 500_000  # by which depth is stamped later


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench("rgbd")
    yield made
    made.close()


def offline(folder: Path, sent: list[Message], cameras: str = "rgbd") -> dict[int, np.ndarray]:
    """T_w_c by stamp."""
    write_bag(folder, iter(sent), "mcap")
    source = open_source(str(folder), cameras=cameras)
    assert isinstance(source.camera, StereoCamera)
    vo, path = StereoVO(source.camera), OdometryPath()
    for frame in source:
        result = vo.update(frame)
        path.add(frame.stamp_ns, result.pose, result.bridged)
    return dict(zip(source.stamps_ns.tolist(), path.T_w_c, strict=True))


def node(space: str, **parameters: object) -> StereoVONode:
    remaps = [
        f"{space}/{name}:={space}/camera/{real}"
        for name, real in (("image", "color/image_raw"), ("depth/image", "depth/image_raw"))
    ]
    return StereoVONode(
        namespace=space,
        parameter_overrides=overrides(cameras="rgbd", **REPLAY, **parameters),
        cli_args=["--ros-args", *(word for each in remaps for word in ("-r", each))],
    )


def send(bench: Bench, space: str, sent: list[Message], seconds: float = 30.0) -> None:
    """Publish the bytes of a bag."""
    topics = sorted({each.topic for each in sent if each.topic != "/tf_static"})
    publishers = {t: bench.publisher(KINDS[t.rpartition("/")[2]], space + t) for t in topics}
    listened = lambda: all(p.get_subscription_count() for p in publishers.values())  # noqa: E731
    assert bench.spin_until(listened, seconds)
    bench.spin(0.2)
    for each in sent:
        if each.topic in publishers:
            kind = KINDS[each.topic.rpartition("/")[2]]
            patiently(publishers[each.topic], deserialize_message(each.data, kind))
            bench.spin(0.01)


@pytest.mark.parametrize(("registered", "encoding"), [(True, "32FC1"), (False, "16UC1")])
def test_the_node_gives_the_numbers_of_a_bag(
    bench: Bench, tmp_path: Path, registered: bool, encoding: str
) -> None:
    sent = list(messages(registered, encoding, APART_NS))
    expected = offline(tmp_path / "bag", sent)
    space = f"/depth_{registered}".lower()
    x, y, z = T_COLOUR_DEPTH[:3, 3].tolist()
    place = {} if registered else {"rgbd__image_from_depth": [x, y, z, 0.0, 0.0, 0.0, 1.0]}
    heard = bench.hear(Odometry, f"{space}/vo/odometry")
    with spinning(made := node(space, **place)):
        send(bench, space, sent)
        assert bench.spin_until(lambda: len(heard) == FRAMES, 30.0), made.warn.counts
        assert "scale sigma (%)" in made.diagnostics()
    T_c_b = lie.se3_inverse(T_b_c)
    for message in heard:
        found = T_c_b @ pose_matrix(message.pose.pose) @ T_b_c
        np.testing.assert_allclose(found, expected[stamp_ns(message.header.stamp)], atol=1e-9)
    T_w_c = room().T_w_c @ (T_COLOUR_DEPTH if registered else np.eye(4))
    true = lie.se3_inverse(T_w_c[0]) @ T_w_c[-1]
    last = expected[max(expected)]
    assert np.linalg.norm(last[:3, 3] - true[:3, 3]) < 0.01
    assert np.linalg.norm(true[:3, 3]) > 0.3


def test_depth_from_an_unknown_place_is_refused(bench: Bench) -> None:
    """Never the identity: where the depth camera is must be said."""
    heard = bench.hear(Odometry, "/nowhere/vo/odometry")
    with spinning(made := node("/nowhere")):
        send(bench, "/nowhere", list(messages(False, "16UC1"))[:9])
        assert counted(bench, made, "frames")
        assert not heard


# --- a raw pair ----------------------------------------------------------------------------------


def raw_pair() -> Iterator[Message]:
    """A pair with lenses that bend, one above the other: the picture is what they make of it."""
    street = Street(StreetConfig(frames=4, seed=3, width=320, height=240))
    for frame in street:
        stamp = 10**12 + frame.stamp_ns
        for side, pixels in (("left", frame.left), ("right", frame.right)):
            c = street.camera.left
            lens = Camera(c.fy, c.fx, 239.0 - c.cy, c.cx)
            info = ros.camera_info(stamp, "camera", lens, (240, 320))
            info.d = np.array([-0.02, 0.005, 0.0, 0.0, 0.0])
            if side == "right":
                info.p[7] = -lens.fy * street.camera.baseline_m
            yield pack(f"/{side}/camera_info", CAMERA_INFO, stamp, info)
            lying = np.ascontiguousarray(np.rot90(pixels, -1))
            yield pack(f"/{side}/image_raw", IMAGE, stamp, ros.image(stamp, "camera", lying))


def test_the_node_rectifies_and_turns_a_raw_vertical_pair(bench: Bench, tmp_path: Path) -> None:
    sent = list(raw_pair())
    expected = offline(tmp_path / "bag", sent, "stereo")
    space = "/vertical"
    remaps = [f"{space}/{s}/image_rect:={space}/{s}/image_raw" for s in ("left", "right")]
    made = StereoVONode(
        namespace=space,
        parameter_overrides=overrides(**REPLAY),
        cli_args=["--ros-args", *(word for each in remaps for word in ("-r", each))],
    )
    heard = bench.hear(Odometry, f"{space}/vo/odometry")
    with spinning(made):
        send(bench, space, sent)
        assert bench.spin_until(lambda: len(heard) == len(expected), 30.0), made.warn.counts
    # Offline poses are of the turned camera, those of the node of the base.
    T_b_t = T_b_c @ lie.se3_from(TURNED.T, np.zeros(3))
    for message in heard:
        found = lie.se3_inverse(T_b_t) @ pose_matrix(message.pose.pose) @ T_b_t
        np.testing.assert_allclose(found, expected[stamp_ns(message.header.stamp)], atol=1e-9)
    # The camera lies on its side: forward is forward, whichever way it is turned.
    assert pose_matrix(heard[-1].pose.pose)[0, 3] > 1.0
