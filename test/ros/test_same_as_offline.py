"""The nodes and the pipeline obey the same rules: lost frames, gaps, stamps apart, one camera."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")
pytest.importorskip("torch", reason="rotations from images need torch")

from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from rclpy.parameter import Parameter
from ros.in_process import overrides, spinning
from ros.node_processes import Bench, StereoRig

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Frame, StereoCamera
from hydranet_ros.gyro.visual_gyro import GyroConfig
from hydranet_ros.pipeline import Pipeline, PipelineConfig, Step
from hydranet_ros.ros.conversions import pose_matrix, stamp_ns
from hydranet_ros.ros.extrinsics import FramesConfig
from hydranet_ros.ros.fusion_node import FusionNode
from hydranet_ros.ros.hydranet_all import HydraNetAll
from hydranet_ros.ros.hydranet_node import HydraNetNode
from hydranet_ros.ros.sharing import SharedSubscriptions
from hydranet_ros.ros.stereo_vo_node import StereoVONode
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

FRAMES, BLACK, AFTER_GAP = 14, 4, 9
PERIOD_NS, GAP_NS = 100_000_000, 2_000_000_000
APART_NS = 500_000  # by which the right images are stamped later
REPLAY = {"input__reliability": "reliable", "input__depth": 1000, "input__queue": 1000}
T_b_c = FramesConfig().T_b_c


@dataclass
class Drive:
    """A street with a black frame, and a gap of 2 s."""

    camera: StereoCamera
    frames: list[Frame]


@pytest.fixture(scope="module")
def drive() -> Drive:
    street = Street(StreetConfig(frames=FRAMES))
    frames = []
    for i, frame in enumerate(street):
        stamp = 10**12 + i * PERIOD_NS + (GAP_NS if i >= AFTER_GAP else 0)
        left, right = frame.left, frame.right
        if i == BLACK:
            left, right = np.zeros_like(left), np.zeros_like(right)
        frames.append(Frame(stamp, left, right))
    return Drive(street.camera, frames)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench("same_as_offline")
    yield made
    made.close()


def offline(drive: Drive, weights: Path, cameras: str) -> list[Step]:
    gyro = GyroConfig(cameras=cameras, weights=str(weights), device="cpu")
    pipeline = Pipeline(drive.camera, PipelineConfig(gyro=gyro))
    return [pipeline.update(frame) for frame in drive.frames]


@pytest.mark.parametrize(
    ("cameras", "together"),
    [
        ("stereo", False),
        ("mono", True),
        pytest.param("stereo", True, marks=pytest.mark.slow),
        pytest.param("mono", False, marks=pytest.mark.slow),
    ],
    ids=["stereo-apart", "mono-together", "stereo-together", "mono-apart"],
)
def test_the_nodes_give_the_numbers_of_the_pipeline(
    bench: Bench, drive: Drive, weights: Path, cameras: str, together: bool
) -> None:
    """Together they share the subscriptions to what both of them hear."""
    steps = offline(drive, weights, cameras)
    space = f"/{cameras}{int(together)}"
    owner = HydraNetAll(namespace=space)
    shared = SharedSubscriptions(owner) if together else None
    net = overrides(
        gyro__weights=str(weights), gyro__cameras=cameras, gyro__device="cpu", **REPLAY
    )
    mono = [f"{space}/image:={space}/left/image_rect"]
    mono += [f"{space}/camera_info:={space}/left/camera_info"]
    rotation = f"{space}/hydranet_node/relative_rotation"
    remaps = [f"{space}/relative_rotation{part}:={rotation}{part}" for part in ("", "/interval")]
    nodes = (
        HydraNetNode(
            shared=shared,
            namespace=space,
            parameter_overrides=[*net, Parameter("input.rectified", value=True)],
            cli_args=["--ros-args", *(word for each in mono for word in ("-r", each))],
        ),
        StereoVONode(shared=shared, namespace=space, parameter_overrides=overrides(**REPLAY)),
        FusionNode(
            shared=shared,
            namespace=space,
            parameter_overrides=overrides(fusion__odometry="own", fusion__max_wait_s=60.0),
            cli_args=["--ros-args", *(word for each in remaps for word in ("-r", each))],
        ),
    )
    rig = StereoRig(bench, drive.camera, drive.frames[0].left.shape, f"{space}/")
    fused = bench.hear(Odometry, f"{space}/fused/odometry")
    odometry = bench.hear(Odometry, f"{space}/vo/odometry")
    rotations = bench.hear(PoseWithCovarianceStamped, rotation)
    with spinning(owner, *nodes):
        left, hearers = (rig.images[0], rig.infos[0]), 1 if together else 2
        assert bench.spin_until(
            lambda: all(p.get_subscription_count() == hearers for p in left), 30.0
        )
        wanted = (f"{space[1:]}/vo/odometry", rotation[1:], f"{rotation[1:]}/interval")
        # The bench hears odometry and rotations too.
        assert bench.wait_for_listeners({wanted[0]: 2, wanted[1]: 2, wanted[2]: 1}, 30.0)
        for frame in drive.frames:
            assert frame.right is not None
            rig.send(frame.stamp_ns, frame.left, frame.right, APART_NS)
            bench.spin(0.02)
        last = steps[-1].stamp_ns
        assert bench.spin_until(
            lambda: all(
                each and stamp_ns(each[-1].header.stamp) == last
                for each in (fused, odometry, rotations)
            ),
            60.0,
        )
    expected = {state.stamp_ns: state.T_w_c for step in steps for state in step.states}
    T_c_b = lie.se3_inverse(T_b_c)
    found = {stamp_ns(m.header.stamp): T_c_b @ pose_matrix(m.pose.pose) @ T_b_c for m in fused}
    assert found.keys() == expected.keys()
    # Not the first frame, the black one, nor the one after the gap.
    assert len(expected) == FRAMES - 3
    for stamp, pose in expected.items():
        np.testing.assert_allclose(found[stamp], pose, atol=1e-9)
    turned = [step.stamp_ns for step in steps if step.rotation]
    assert [stamp_ns(m.header.stamp) for m in rotations] == turned
    moved = [step.stamp_ns for step in steps if step.vo and not step.vo.bridged]
    assert [stamp_ns(m.header.stamp) for m in odometry] == moved
