from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("rosbags", reason="bags need rosbags")

from hydranet_ros.cli.__main__ import main
from hydranet_ros.datasets import bag_messages as ros
from hydranet_ros.datasets.bag_files import read_messages, topics, write_bag
from hydranet_ros.datasets.bag_messages import Message, pack, recorded, unpack
from hydranet_ros.datasets.sensor_messages import (
    grey_of_compressed,
    grey_of_raw,
    rectified_camera,
    stereo_camera,
)
from hydranet_ros.datasets.source import SimulatedStreet, open_source
from hydranet_ros.errors import BadInput, FileError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import T_BASE_OPTICAL, Camera, StereoCamera

CAMERA = StereoCamera(Camera(700.0, 710.0, 61.0, 40.5), 0.54)
SIZE = 120, 80


@pytest.fixture(scope="module")
def street() -> SimulatedStreet:
    return SimulatedStreet(3)


@pytest.fixture(scope="module")
def frames(street: SimulatedStreet) -> list[Message]:
    """The messages of three frames."""
    return list(recorded(street))


def changed(messages: list[Message], topic: str, **fields: Any) -> list[Message]:
    """The same messages, with some fields of one topic changed."""
    out = []
    for message in messages:
        if message.topic == topic:
            content = unpack(message)
            for name, value in fields.items():
                setattr(content, name, value)
            message = pack(topic, message.type, message.stamp_ns, content)
        out.append(message)
    return out


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_bag_gives_back_the_source(
    tmp_path: Path, street: SimulatedStreet, storage: str, compressed: bool
) -> None:
    assert write_bag(tmp_path / "bag", recorded(street, compressed), storage) == 16
    bag = open_source(str(tmp_path / "bag"))
    assert bag.camera == street.camera
    assert bag.stamps_ns.tolist() == street.stamps_ns.tolist()
    for ours, theirs in zip(street, bag, strict=True):
        assert ours.stamp_ns == theirs.stamp_ns
        np.testing.assert_array_equal(ours.left, theirs.left)
        np.testing.assert_array_equal(ours.right, theirs.right)
    assert bag.T_w_c is not None
    assert street.T_w_c is not None
    np.testing.assert_allclose(bag.T_w_c, T_BASE_OPTICAL @ street.T_w_c, atol=1e-12)
    assert len(open_source(str(tmp_path / "bag"), max_frames=2)) == 2
    assert len(list(open_source(str(tmp_path / "bag"), max_frames=2))) == 2


def test_truth_that_is_not_known_is_not_recorded() -> None:
    source = SimulatedStreet(4)
    assert source.T_w_c is not None
    source.T_w_c = source.T_w_c.copy()
    source.T_w_c[1] = np.nan
    messages = list(recorded(source))
    assert len(messages) == ros.message_count(source)
    truth = [unpack(each) for each in messages if each.topic == ros.GROUND_TRUTH]
    assert [ros.stamp_of(each.header.stamp) for each in truth] == source.stamps_ns[
        [0, 2, 3]
    ].tolist()
    speeds = [abs(each.twist.twist.linear.z) for each in truth]
    assert speeds[:2] == [0.0, 0.0]  # the frame before is not known
    assert speeds[2] > 1.0


def test_a_single_storage_file_is_a_bag(tmp_path: Path, frames: list[Message]) -> None:
    write_bag(tmp_path / "bag", frames)
    (file,) = (tmp_path / "bag").glob("*.mcap")
    assert len(list(open_source(str(file)))) == 3


def test_the_truth_moves_as_its_velocity_says(
    street: SimulatedStreet, frames: list[Message]
) -> None:
    poses = [unpack(m) for m in frames if m.topic == "/ground_truth/odometry"]
    before, now = (ros.pose_of(o.pose.pose) for o in poses[1:])
    linear, angular = poses[2].twist.twist.linear, poses[2].twist.twist.angular
    velocity = np.array([getattr(part, axis) for part in (linear, angular) for axis in "xyz"])
    dt = (street.stamps_ns[2] - street.stamps_ns[1]) * 1e-9
    np.testing.assert_allclose(before @ lie.se3_exp(velocity * dt), now, atol=1e-9)
    assert velocity[2] > 1.0  # the car drives along the optical axis
    assert now[0, 3] > before[0, 3]  # and along x of the world, which is upright


def test_static_transforms_put_the_cameras_in_place(frames: list[Message]) -> None:
    left, right = unpack(frames[0]).transforms
    assert (left.header.frame_id, left.child_frame_id) == ("base_link", "camera_left_optical")
    q = left.transform.rotation
    forward = lie.quaternion_to_matrix([q.w, q.x, q.y, q.z]) @ [0.0, 0.0, 1.0]
    np.testing.assert_allclose(forward, [1.0, 0.0, 0.0], atol=1e-12)
    assert right.transform.translation.x == pytest.approx(0.54)


def test_an_epoch_moves_every_stamp(street: SimulatedStreet) -> None:
    epoch = 1_317_000_000 * 10**9
    for plain, moved in zip(recorded(street), recorded(street, epoch_ns=epoch), strict=True):
        assert moved.stamp_ns == plain.stamp_ns + epoch
        if moved.topic != "/tf_static":
            assert unpack(moved).header.stamp.sec == 1_317_000_000


# --- writing -------------------------------------------------------------------------------------


def test_an_interruption_leaves_nothing(tmp_path: Path, frames: list[Message]) -> None:
    def interrupted() -> Iterator[Message]:
        yield frames[0]
        assert list(tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_bag(tmp_path / "bag", interrupted())
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_not_written_over(tmp_path: Path, frames: list[Message]) -> None:
    (tmp_path / "bag").mkdir()
    with pytest.raises(FileError, match="bag: exists already"):
        write_bag(tmp_path / "bag", frames)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written"):
        write_bag(tmp_path / "file" / "bag", frames)


# --- images and calibration ----------------------------------------------------------------------


def raw(pixels: np.ndarray, encoding: str, padding: int = 0, big: bool = False) -> Any:
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, -1)
    rows = np.ascontiguousarray(rows.astype(rows.dtype.newbyteorder(">" if big else "<")))
    data = np.pad(rows.view(np.uint8), ((0, 0), (0, padding)), constant_values=77)
    return ros.make(
        ros.IMAGE,
        header=ros.header(0, "c"),
        height=height,
        width=width,
        encoding=encoding,
        is_bigendian=int(big),
        step=data.shape[1],
        data=data.reshape(-1),
    )


@pytest.mark.parametrize("padding", [0, 6])
def test_encodings_give_the_same_grey(padding: int) -> None:
    bgr = np.random.default_rng(0).integers(0, 255, (7, 5, 3), dtype=np.uint8)
    expected = np.round(bgr @ [0.114, 0.587, 0.299])
    for code, encoding in (
        (None, "bgr8"),
        (cv2.COLOR_BGR2RGB, "rgb8"),
        (cv2.COLOR_BGR2BGRA, "bgra8"),
        (cv2.COLOR_BGR2RGBA, "rgba8"),
    ):
        pixels = bgr if code is None else cv2.cvtColor(bgr, code)
        np.testing.assert_allclose(grey_of_raw(raw(pixels, encoding, padding)), expected, atol=1.0)
    np.testing.assert_array_equal(grey_of_raw(raw(bgr[..., 0], "mono8", padding)), bgr[..., 0])
    deep = bgr[..., 0].astype(np.uint16) * 257
    for big in (False, True):
        np.testing.assert_array_equal(grey_of_raw(raw(deep, "mono16", padding, big)), bgr[..., 0])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"encoding": "64FC1"}, "encoding '64FC1' is not known"),
        ({"step": 4}, "step 4 is too short: 5 pixels of mono8 need 5 bytes"),
        ({"height": 8}, "data has 35 bytes instead of step 5 times height 8"),
        ({"height": 6}, "data has 35 bytes instead of step 5 times height 6"),
        ({"width": 0, "height": 0, "step": 0}, "image is empty: 0x0 pixels"),
    ],
)
def test_images_that_lie_are_refused(fields: dict[str, Any], why: str) -> None:
    message = raw(np.zeros((7, 5), np.uint8), "mono8")
    for name, value in fields.items():
        setattr(message, name, value)
    with pytest.raises(BadInput, match=why):
        grey_of_raw(message)


@pytest.mark.parametrize("data", [b"", b"not an image"])
def test_garbage_is_not_an_image(data: bytes) -> None:
    content = np.frombuffer(data, dtype=np.uint8)
    message = ros.make(
        ros.COMPRESSED_IMAGE, header=ros.header(0, "c"), format="jpeg", data=content
    )
    with pytest.raises(BadInput, match="is not an image that OpenCV can read"):
        grey_of_compressed(message)


def infos() -> tuple[Any, Any]:
    left, right = (
        ros.camera_info(0, "c", CAMERA.left, SIZE, baseline)
        for baseline in (0.0, CAMERA.baseline_m)
    )
    return left, right


def test_calibration_with_binning_and_region_of_interest() -> None:
    left, right = infos()
    assert stereo_camera(left, right) == CAMERA
    for info in (left, right):
        info.binning_x, info.binning_y, info.roi.x_offset, info.roi.y_offset = 2, 2, 11, 8
    binned = stereo_camera(left, right)
    assert binned.left == Camera(350.0, 355.0, 25.0, 16.25)
    assert binned.baseline_m == pytest.approx(0.54)
    with pytest.raises(BadInput, match="are left and right swapped"):
        stereo_camera(right, left)
    left.k[0] = 0.0
    with pytest.raises(BadInput, match=r"K\[0\] = 0, an uncalibrated"):
        rectified_camera(left)
    right.p[5] = np.nan
    with pytest.raises(BadInput, match="a P that is not finite"):
        rectified_camera(right)


# --- finding things ------------------------------------------------------------------------------


def renamed(messages: list[Message], names: dict[str, str]) -> list[Message]:
    out = []
    for m in messages:
        topic = m.topic
        for old, new in names.items():
            topic = topic.replace(old, new)
        out.append(Message(topic, m.type, m.stamp_ns, m.data))
    return out


def test_topics_are_found_by_their_names(tmp_path: Path, frames: list[Message]) -> None:
    names = {"/left": "/stereo/cam0", "/right": "/stereo/cam1"}
    write_bag(tmp_path / "bag", renamed(frames, names))
    assert len(list(open_source(str(tmp_path / "bag")))) == 3


def test_rectified_and_plain_topics_are_preferred(
    tmp_path: Path, street: SimulatedStreet, frames: list[Message]
) -> None:
    both = [*frames, *renamed(frames, {"image_rect": "image_raw"}), *recorded(street, True)]
    write_bag(tmp_path / "bag", both)
    bag = open_source(str(tmp_path / "bag"))
    assert bag.topics.images[0] == "/left/image_rect"  # type: ignore[attr-defined]


def test_two_pairs_have_to_be_told_apart(tmp_path: Path, frames: list[Message]) -> None:
    names = {"/left": "/rear/left", "/right": "/rear/right", "/ground_truth": "/rear/true"}
    write_bag(tmp_path / "bag", [*frames, *renamed(frames, names)])
    path = str(tmp_path / "bag")
    with pytest.raises(FileError, match="several stereo pairs: choose"):
        open_source(path)
    chosen = open_source(path, left_topic="/rear/left/image_rect")
    assert chosen.topics.infos[1] == "/rear/right/camera_info"  # type: ignore[attr-defined]
    with pytest.raises(FileError, match="no images on /nowhere"):
        open_source(path, left_topic="/nowhere")


# --- pairs, and one camera -----------------------------------------------------------------------


def shifted(messages: list[Message], topic: str, by_ns: int) -> list[Message]:
    """The same messages, with the header stamps of one topic moved."""
    out = []
    for message in messages:
        if message.topic == topic:
            content = unpack(message)
            stamp = ros.stamp_of(content.header.stamp) + by_ns
            content.header = ros.header(stamp, content.header.frame_id)
            message = pack(topic, message.type, message.stamp_ns, content)
        out.append(message)
    return out


@pytest.mark.parametrize("late", ["left", "right"])
def test_stamps_half_a_millisecond_apart_are_a_pair(
    tmp_path: Path, street: SimulatedStreet, frames: list[Message], late: str
) -> None:
    """A frame has the stamp of its left image."""
    moved = shifted(frames, f"/{late}/image_rect", 500_000)
    if late == "left":
        moved = shifted(moved, "/ground_truth/odometry", 500_000)
    write_bag(tmp_path / "bag", moved)
    bag = open_source(str(tmp_path / "bag"))
    assert (bag.stamps_ns - street.stamps_ns).tolist() == [500_000 * (late == "left")] * 3
    assert bag.unmatched == 0
    for ours, theirs in zip(street, bag, strict=True):
        np.testing.assert_array_equal(ours.left, theirs.left)
        np.testing.assert_array_equal(ours.right, theirs.right)


def test_images_without_the_other_of_their_pair_are_counted_and_reported(
    tmp_path: Path, frames: list[Message], capsys: pytest.CaptureFixture[str]
) -> None:
    """One right image is missing; the frames before and after it are used."""
    middle = frames[8].stamp_ns
    rest = [m for m in frames if (m.topic, m.stamp_ns) != ("/right/image_rect", middle)]
    assert len(rest) == len(frames) - 1
    write_bag(tmp_path / "bag", rest)
    bag = open_source(str(tmp_path / "bag"))
    assert (len(bag), len(list(bag)), bag.unmatched) == (2, 2, 1)
    assert main(["run", str(tmp_path / "bag"), "--only", "vo"]) == 0
    assert "2 frames, 0 lost, 1 images without the other of their pair" in capsys.readouterr().out
    assert main(["run", str(tmp_path / "bag"), "--only", "vo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unmatched"] == 1


def test_one_camera_of_a_pair_is_its_left_one(tmp_path: Path, frames: list[Message]) -> None:
    write_bag(tmp_path / "bag", frames)
    mono = open_source(str(tmp_path / "bag"), cameras="mono")
    pair = open_source(str(tmp_path / "bag"))
    assert isinstance(pair.camera, StereoCamera)
    assert mono.camera == pair.camera.left
    for one, both in zip(mono, pair, strict=True):
        assert (one.stamp_ns, one.right) == (both.stamp_ns, None)
        np.testing.assert_array_equal(one.left, both.left)


def test_a_raw_image_of_one_camera_is_undistorted(tmp_path: Path, frames: list[Message]) -> None:
    """A grid of dots that a lens bends comes out where a pinhole camera has it."""
    distortion = np.array([-0.25, 0.08, 1e-3, -5e-4, 0.0])
    width, height = 640, 480
    camera = Camera(500.0, 510.0, 320.0, 240.0)
    K = np.array([[500.0, 0.0, 320.0], [0.0, 510.0, 240.0], [0.0, 0.0, 1.0]])
    points = np.array([[x, y, 1.0] for x in (-0.4, 0.0, 0.3) for y in (-0.3, 0.0, 0.25)])
    bent = cv2.projectPoints(points, np.zeros(3), np.zeros(3), K, distortion)[0].reshape(-1, 2)
    u, v = np.meshgrid(np.arange(width), np.arange(height))
    picture = sum(255.0 * np.exp(-((u - x) ** 2 + (v - y) ** 2) / 18.0) for x, y in bent)
    picture = np.clip(np.round(picture), 0, 255).astype(np.uint8)
    info = ros.camera_info(0, "c", camera, (width, height))
    info.d = distortion
    messages = [
        pack("/camera/camera_info", ros.CAMERA_INFO, 0, info),
        pack("/camera/image_raw", ros.IMAGE, 0, ros.image(0, "c", picture)),
    ]
    write_bag(tmp_path / "bag", messages)
    source = open_source(str(tmp_path / "bag"), cameras="mono")
    assert source.camera == camera
    (frame,) = source
    assert frame.right is None
    for x, y in camera.project(points):
        near = frame.left * (np.hypot(u - x, v - y) < 12.0).astype(float)
        found = np.array([(near * u).sum(), (near * v).sum()]) / near.sum()
        np.testing.assert_allclose(found, [x, y], atol=0.3)
    assert np.abs(bent - camera.project(points)).max() > 5.0  # the lens does bend


def test_results_of_the_nodes_are_read_back() -> None:
    """Monte Carlo is in the tests of the conversions; here the formulas are inverted."""
    C_2_1, Sigma = lie.so3_exp([0.02, -0.3, 0.1]), np.diag([1e-6, 4e-6, 2e-6])
    R_1_2 = C_2_1.T
    full = np.eye(6) * 1e6
    full[3:, 3:] = R_1_2 @ Sigma @ R_1_2.T
    T = lie.se3_from(R_1_2, np.zeros(3))
    message = ros.odometry(2 * 10**8, "a", "b", T, np.zeros(6))
    message.pose.covariance = full.reshape(-1)
    reference = ros.header(10**8, "").stamp
    interval = type("Interval", (), {"time_ref": reference})
    found = ros.rotation_of(message, interval, message)
    assert (found.stamp_1_ns, found.stamp_2_ns) == (10**8, 2 * 10**8)
    np.testing.assert_allclose(found.C_2_1, C_2_1, atol=1e-12)
    np.testing.assert_allclose(found.Sigma_2_1, Sigma, atol=1e-15)
    np.testing.assert_allclose(found.epistemic, Sigma, atol=1e-15)


def bad_bag(frames: list[Message], how: str) -> list[Message]:
    if how == "no pair":
        return [m for m in frames if not m.topic.startswith("/right")]
    if how == "no calibration":
        return [m for m in frames if m.topic != "/left/camera_info"]
    if how == "unsynchronised":
        return changed(frames, "/right/image_rect", header=ros.header(2_000_000, "c"))[:6]
    if how == "stamps":
        return changed(frames, "/left/image_rect", header=ros.header(5, "c"))
    if how == "other frame":
        return changed(frames, "/ground_truth/odometry", child_frame_id="imu")
    if how == "truth missing":
        last = max(i for i, m in enumerate(frames) if m.topic == "/ground_truth/odometry")
        return frames[:last] + frames[last + 1 :]
    if how == "not of a pair":
        raw_topics = renamed(frames, {"image_rect": "image_raw"})
        return changed(raw_topics, "/left/camera_info", r=np.full(9, 0.1))
    return changed(frames, "/left/camera_info", k=np.zeros(9))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("no pair", "has no stereo pair: choose"),
        ("no calibration", "/left/camera_info is missing"),
        ("unsynchronised", "have no stamps near each other"),
        ("stamps", "/left/image_rect: stamp 5 ns does not increase"),
        ("other frame", "is the pose of 'imu'"),
        ("truth missing", "/ground_truth/odometry has no pose at 200000000 ns"),
        ("not of a pair", "has an R that is no rotation: calibrate the pair"),
        ("uncalibrated", "camera_info of 'camera_left_optical' has K[0] = 0"),
    ],
)
def test_bags_that_cannot_be_used_say_why(
    tmp_path: Path, frames: list[Message], how: str, why: str
) -> None:
    write_bag(tmp_path / "bag", bad_bag(frames, how))
    with pytest.raises(FileError) as caught:
        open_source(str(tmp_path / "bag"))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_of_another_size_than_calibrated_are_named(
    tmp_path: Path, frames: list[Message]
) -> None:
    write_bag(tmp_path / "bag", changed(frames, "/right/camera_info", width=2000, height=900))
    bag = open_source(str(tmp_path / "bag"))
    with pytest.raises(FileError, match=r"/right/image_rect: .* its camera_info says 2000x900"):
        list(bag)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99999])
def test_damaged_bags_are_one_line(
    tmp_path: Path, frames: list[Message], storage: str, share: float
) -> None:
    write_bag(tmp_path / "bag", frames, storage)
    (file,) = (p for p in (tmp_path / "bag").iterdir() if p.suffix in (".mcap", ".db3"))
    os.truncate(file, int(share * file.stat().st_size))
    with pytest.raises(FileError) as caught:
        list(read_messages(tmp_path / "bag"))
    assert "is not a whole rosbag2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bags_are_read_without_ros(tmp_path: Path, frames: list[Message]) -> None:
    write_bag(tmp_path / "bag", frames)
    assert topics(tmp_path / "bag")["/left/image_rect"] == ros.IMAGE
    code = (
        "import sys; from hydranet_ros.datasets.source import open_source; "
        f"print(len(open_source({str(tmp_path / 'bag')!r})), 'rclpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3 False\n"


def test_without_the_library_it_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['rosbags'] = None; from hydranet_ros.cli.__main__ import main; "
        f"sys.exit(main(['kitti2bag', 'street', {str(tmp_path / 'bag')!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    expected = "hydranet kitti2bag: a bag needs rosbags: pip install 'hydranet_ros[bags]'\n"
    assert done.stderr == expected


def test_white_is_that_of_the_stream(tmp_path: Path, frames: list[Message]) -> None:
    """Of images with 16 bits, as it is of a live camera: a dark one stays dark after a bright."""
    tops, messages = iter((4000, 4000, 500, 500, 500, 500)), []
    for message in frames:
        if message.topic.endswith("image_rect"):
            content = unpack(message)
            shape, top = (content.height, content.width), next(tops)
            wide = np.full(shape, top // 2, np.uint16)
            wide[::2] = top
            content.encoding, content.step = "mono16", 2 * content.width
            content.data = np.frombuffer(wide.tobytes(), np.uint8)
            message = pack(message.topic, message.type, message.stamp_ns, content)
        messages.append(message)
    write_bag(tmp_path / "bag", messages)
    bag = open_source(str(tmp_path / "bag"))
    brightest = [int(frame.left.max()) for frame in bag]
    assert brightest == [round(4000 * 255 / 4095)] + 2 * [round(500 * 255 / 4095)]
    assert brightest == [int(frame.left.max()) for frame in bag], "each reading begins anew"
