"""Topics as cameras have them: names, transports, durability, and stamps that differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from nav_msgs.msg import Odometry
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros.in_process import counted, overrides, spinning
from ros.node_processes import Bench, camera_info, image, patiently, stamp
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from hydranet_ros.errors import BadInput
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.ros.extrinsics import NAME_CONFIRMED, Extrinsics, FramesConfig, SteadyName
from hydranet_ros.ros.fusion_node import FusionNode
from hydranet_ros.ros.stereo_vo_node import StereoVONode

CAMERA = StereoCamera(Camera(350.0, 350.0, 160.0, 60.0), 0.5)
SHAPE = (120, 320)
PERIOD = 10**8
SIDES = ("left", "right")
LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
rng = np.random.default_rng(0)
SCENE = cv2.GaussianBlur(rng.integers(0, 256, (120, 700), dtype=np.uint8), (0, 0), 1.5)


def views(index: int) -> tuple[np.ndarray, np.ndarray]:
    """A wall that moves sideways, seen with a disparity of 10 pixels."""
    at = 100 + 3 * index
    return SCENE[:, at : at + 320], SCENE[:, at + 10 : at + 330]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench("topics")
    yield made
    made.close()


class Rig:
    """A camera driver: its names, its transport, its quality of service."""

    def __init__(
        self,
        bench: Bench,
        names: tuple[str, str],
        infos: tuple[str, str],
        compressed: bool = False,
        latched: bool = False,
    ) -> None:
        self._bench, self._compressed, self._latched = bench, compressed, latched
        kind, suffix = (CompressedImage, "/compressed") if compressed else (Image, "")
        self.images = [bench.publisher(kind, name + suffix) for name in names]
        quality = [LATCHED] if latched else []
        self.infos = [bench.publisher(CameraInfo, name, *quality) for name in infos]
        self._index = 0
        if latched:
            self._calibrate()

    def _calibrate(self) -> None:
        for right, publisher in enumerate(self.infos):
            info = camera_info(CAMERA, SHAPE, bool(right))
            info.header.frame_id = "camera_left"
            publisher.publish(info)

    def heard(self) -> bool:
        return all(p.get_subscription_count() for p in (*self.images, *self.infos))

    def send(self, right_later_ns: int = 0) -> None:
        self._index += 1
        at = 10**12 + self._index * PERIOD
        if not self._latched:
            self._calibrate()
        for publisher, pixels, later in zip(
            self.images, views(self._index), (0, right_later_ns), strict=True
        ):
            message: Any = image(pixels, at + later)
            if self._compressed:
                data = cv2.imencode(".png", pixels)[1].tobytes()
                message = CompressedImage(header=message.header, format="png", data=data)
            patiently(publisher, message)
        self._bench.spin(0.05)


def vo(space: str, remaps: dict[str, str] | None = None, **parameters: Any) -> StereoVONode:
    given = {"input__reliability": "reliable", "input__queue": 100, **parameters}
    words = ["--ros-args"]
    for old, new in (remaps or {}).items():
        words += ["-r", f"{old}:={new}"]
    return StereoVONode(namespace=space, cli_args=words, parameter_overrides=overrides(**given))


def runs(bench: Bench, node: StereoVONode, rig: Rig, topic: str, later_ns: int = 0) -> bool:
    """Whether odometry comes out within some frames."""
    odometry = bench.hear(Odometry, topic)
    with spinning(node):
        if not bench.spin_until(rig.heard, 10.0):
            return False
        for _ in range(40):
            rig.send(later_ns)
            if len(odometry) > 3:
                return True
    return False


def test_compressed_images_follow_the_remap_of_their_topic(bench: Bench) -> None:
    """And the calibrations follow the images, as image_pipeline has it."""
    names = ("/rig1/l/image_raw", "/rig1/r/image_raw")
    rig = Rig(bench, names, ("/rig1/l/camera_info", "/rig1/r/camera_info"), compressed=True)
    remaps = {f"{side}/image_rect": name for side, name in zip(SIDES, names, strict=True)}
    node = vo("follows", remaps, input__transport="compressed")
    assert runs(bench, node, rig, "/follows/vo/odometry")


def test_the_transport_is_found(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    names = tuple(f"/found/{side}/image_rect" for side in SIDES)
    infos = tuple(f"/found/{side}/camera_info" for side in SIDES)
    rig = Rig(bench, names, infos, compressed=True)  # type: ignore[arg-type]
    assert runs(bench, vo("found"), rig, "/found/vo/odometry")
    assert "compressed images of /found/left/image_rect/compressed" in capfd.readouterr().err


def test_a_calibration_may_be_elsewhere(bench: Bench) -> None:
    names = ("/rig2/a/image", "/rig2/b/image")
    rig = Rig(bench, names, ("/rig2/calibration_a", "/rig2/b/camera_info"))
    remaps = {f"{side}/image_rect": name for side, name in zip(SIDES, names, strict=True)}
    remaps["left/camera_info"] = "/rig2/calibration_a"
    assert runs(bench, vo("elsewhere", remaps), rig, "/elsewhere/vo/odometry")


def test_a_latched_calibration_is_received(bench: Bench) -> None:
    """Published once, before the node is there."""
    names = tuple(f"/latched/{side}/image_rect" for side in SIDES)
    infos = tuple(f"/latched/{side}/camera_info" for side in SIDES)
    rig = Rig(bench, names, infos, latched=True)  # type: ignore[arg-type]
    bench.spin(0.5)
    assert runs(bench, vo("latched"), rig, "/latched/vo/odometry")


def test_a_prefix_of_the_frames(bench: Bench) -> None:
    names = tuple(f"/prefixed/{side}/image_rect" for side in SIDES)
    infos = tuple(f"/prefixed/{side}/camera_info" for side in SIDES)
    rig = Rig(bench, names, infos)  # type: ignore[arg-type]
    heard = bench.hear(Odometry, "/prefixed/vo/odometry")
    node = vo("prefixed", frames__prefix="robot1/")
    assert runs(bench, node, rig, "/prefixed/vo/odometry")
    assert heard[0].header.frame_id == "robot1/odom"
    assert heard[0].child_frame_id == "robot1/base_link"


@pytest.mark.parametrize("milliseconds", [0.5, 5, 30])
def test_stamps_of_a_pair_may_differ(bench: Bench, milliseconds: float) -> None:
    """By less than half a frame; beyond the limit it is told by how much."""
    space = f"apart{round(10 * milliseconds)}"
    names = tuple(f"/{space}/{side}/image_rect" for side in SIDES)
    infos = tuple(f"/{space}/{side}/camera_info" for side in SIDES)
    rig = Rig(bench, names, infos)  # type: ignore[arg-type]
    node = vo(space)
    assert runs(bench, node, rig, f"/{space}/vo/odometry", round(milliseconds * 1e6))
    warned = node.warn.counts["stereo sync"]
    assert warned == 0 if milliseconds < 1.0 else warned > 0


def test_the_offset_that_was_measured_is_told(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    names = tuple(f"/told/{side}/image_rect" for side in SIDES)
    infos = tuple(f"/told/{side}/camera_info" for side in SIDES)
    rig = Rig(bench, names, infos)  # type: ignore[arg-type]
    node = vo("told")
    assert runs(bench, node, rig, "/told/vo/odometry", 7_250_000)
    log = capfd.readouterr().err
    assert "left and right stamps are 7.250 ms apart, more than input.sync_tolerance_s" in log


def test_images_without_their_other_half_are_warned_about(bench: Bench) -> None:
    """A side that runs at its own pace: no pair at all."""
    names = tuple(f"/lonely/{side}/image_rect" for side in SIDES)
    infos = tuple(f"/lonely/{side}/camera_info" for side in SIDES)
    rig = Rig(bench, names, infos)  # type: ignore[arg-type]
    node = vo("lonely")
    with spinning(node):
        assert bench.spin_until(rig.heard, 10.0)
        for _ in range(30):
            rig.send(right_later_ns=3 * 10**9 + 55_000_000)
        assert counted(bench, node, "stereo sync")
        (worker,) = node.workers
        bench.spin(1.5)
        assert int(worker.diagnostics()["unmatched"]) > 5
        assert any("other half" in text for _, text in node._problems(worker.look_after_topics()))


@pytest.mark.parametrize(
    ("base", "camera", "why"),
    [
        ("", "", "odometry has no child_frame_id: set it, say to 'base_link'"),
        ("", "camera", "odometry has no child_frame_id"),
        ("chassis", "", "frame 'chassis' is not frames.base_frame 'base_link': name it"),
        ("chassis", "camera", "nor the camera's 'camera'"),
    ],
)
def test_frames_without_names_are_told(bench: Bench, base: str, camera: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Extrinsics(bench.node, FramesConfig()).camera_in(base, camera)


def test_an_assumed_mounting_is_told_once(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """Identity, or a guess, in silence is how a tilted camera turns the odometry."""
    assumed = Extrinsics(bench.node, FramesConfig())
    for _ in range(3):
        assumed.camera_in("base_link", "camera")
    assert capfd.readouterr().err.count("taken to be at 'base_link' and to look forward") == 1
    tilted = FramesConfig(base_from_camera=(0.2, 0.0, 0.5, -0.6, 0.6, -0.374, 0.374))
    Extrinsics(bench.node, tilted).camera_in("base_link", "camera")
    assert "look forward" not in capfd.readouterr().err


def test_a_lone_other_frame_is_no_other_mounting() -> None:
    """'base_link' in the header of one image would put the camera into the base."""
    camera = SteadyName()
    assert [camera.take("camera") for _ in range(2)] == ["camera", "camera"]
    for wrong in ("base_link", "", "base_link"):
        with pytest.raises(BadInput, match="instead of 'camera'"):
            camera.take(wrong)
    assert camera.take("camera") == "camera"
    for _ in range(NAME_CONFIRMED - 1):
        with pytest.raises(BadInput):
            camera.take("other")
    assert camera.take("other") == camera.name == "other"


def test_a_calibration_without_a_size_ends_no_node(bench: Bench) -> None:
    """And with distortion: as many drivers send it. 0.1 ended with an AttributeError."""
    torch = pytest.importorskip("torch", reason="rotations from images need torch")
    assert torch is not None
    from hydranet_ros.ros.hydranet_node import HydraNetNode

    node = HydraNetNode(
        namespace="blank", parameter_overrides=overrides(input__reliability="reliable")
    )
    pictures = bench.publisher(Image, "/blank/image")
    infos = bench.publisher(CameraInfo, "/blank/camera_info")
    blank = camera_info(CAMERA, (0, 0), False)
    blank.d = [-0.3, 0.1, 0.0, 0.0, 0.0]
    with spinning(node):
        assert bench.spin_until(
            lambda: pictures.get_subscription_count() and infos.get_subscription_count(), 10.0
        )
        for index in range(1, 30):
            blank.header.stamp = stamp(10**12 + index * PERIOD)
            infos.publish(blank)
            pictures.publish(image(views(index)[0], 10**12 + index * PERIOD))
            bench.spin(0.1)
            if node.throughput.count >= 2:
                break
        assert node.throughput.count >= 2
        assert not node.failed


def test_images_without_a_calibration_are_told_as_such(bench: Bench) -> None:
    """And not as a node that is too slow."""
    names = tuple(f"/bare/{side}/image_rect" for side in SIDES)
    pictures = [bench.publisher(Image, name) for name in names]
    node = vo("bare", input__queue=1)
    with spinning(node):
        assert bench.spin_until(
            lambda: all(each.get_subscription_count() for each in pictures), 10.0
        )
        for index in range(1, 5):
            for publisher, pixels in zip(pictures, views(index), strict=True):
                publisher.publish(image(pixels, index * PERIOD))
        assert counted(bench, node, "no calibration", 3)
        assert node.warn.counts["dropped frames"] == 0


def test_a_camera_keeps_its_name_when_it_may_have_another(bench: Bench) -> None:
    """After ~/reset in the dark, wheels are read with the camera's place from TF as before."""
    camera = SteadyName()
    camera.take("camera")
    camera.clear()
    assert camera.name == "camera"
    assert camera.take("other") == camera.name == "other"
    node = FusionNode(namespace="kept")
    node.trigger_configure()
    node.trigger_activate()
    node._camera.take("camera")
    node.reset("on request")
    assert node._camera.name == "camera"
    node.end()
