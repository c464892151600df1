"""Folders of EuRoC, TUM RGB-D, 7-Scenes and robots: what they mean, what may be wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from hydranet_ros.datasets.camera_files import read_camera, read_sensor, rectify
from hydranet_ros.datasets.image_folder import matched
from hydranet_ros.datasets.source import open_source, true_trajectory
from hydranet_ros.datasets.tum import read_samples
from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.geometry.trajectory import write_tum

WIDTH, HEIGHT, COUNT = 160, 120, 6
START, STEP = 1_400_000_000_000_000_000, 50_000_000
STAMPS = START + STEP * np.arange(COUNT)
K = [130.0, 0.0, 78.0, 0.0, 132.0, 61.0, 0.0, 0.0, 1.0]
D = [-0.28, 0.07, 0.0002, 0.00002]
# The left camera looks along the body's z axis, turned by a quarter; the right one is beside it.
T_BODY_LEFT = lie.se3_from(lie.so3_exp([0.02, 0.01, np.pi / 2]), [-0.02, -0.06, 0.01])
T_LEFT_RIGHT = lie.se3_from(lie.so3_exp([0.01, -0.015, 0.005]), [0.11, 0.002, -0.001])

CAMERA_INFO = f"""\
image_width: {WIDTH}
image_height: {HEIGHT}
camera_name: test
camera_matrix: {{rows: 3, cols: 3, data: {K}}}
distortion_model: plumb_bob
distortion_coefficients: {{rows: 1, cols: 5, data: [0.1, -2e-2, 1e-3, 0, 0]}}
"""


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (HEIGHT, WIDTH), dtype=np.uint8)


def body_path(stamps: np.ndarray) -> np.ndarray:
    """T_w_b of a steady turn and a steady drive: interpolation is exact on it."""
    s = (stamps - START)[:, None] * 1e-9
    return lie.se3_from(lie.so3_exp(s * [0.3, -0.2, 0.5]), s * [1.0, 2.0, -0.5])


def sensor(T_body_camera: np.ndarray, model: str = "radial-tangential") -> str:
    return (
        f"T_BS:\n  cols: 4\n  rows: 4\n  data: {T_body_camera.ravel().tolist()}\n"
        f"resolution: [{WIDTH}, {HEIGHT}]\nintrinsics: [130, 132, 78, 61]\n"
        f"distortion_model: {model}\ndistortion_coefficients: {D}\n"
    )


@pytest.fixture
def euroc(tmp_path: Path) -> Path:
    folder = tmp_path / "flight"
    for i, (name, T) in enumerate(
        (("cam0", T_BODY_LEFT), ("cam1", T_BODY_LEFT @ T_LEFT_RIGHT)),
    ):
        camera = folder / "mav0" / name
        (camera / "data").mkdir(parents=True)
        (camera / "sensor.yaml").write_text(sensor(T))
        for j, stamp in enumerate(STAMPS):
            cv2.imwrite(str(camera / "data" / f"{stamp}.png"), noise(10 * j + i))
        lines = "".join(f"{stamp},{stamp}.png\r\n" for stamp in STAMPS)
        (camera / "data.csv").write_text("#timestamp [ns],filename\r\n" + lines)
    times = START + np.arange(-7_000_000, 220_000_000, 5_000_000)
    T = body_path(times)
    wxyz = lie.quaternion_from_matrix(T[:, :3, :3])
    truth = folder / "mav0" / "state_groundtruth_estimate0"
    truth.mkdir()
    rows = [
        ",".join(map(str, [stamp, *pose[:3, 3], *q, *[0.0] * 9]))
        for stamp, pose, q in zip(times, T, wxyz, strict=True)
    ]
    (truth / "data.csv").write_text("#timestamp, p_RS_R_x [m]\n" + "\n".join(rows) + "\n")
    return folder


@pytest.fixture
def tum(tmp_path: Path) -> Path:
    folder = tmp_path / "rgbd_dataset_freiburg1_test"
    (folder / "rgb").mkdir(parents=True)
    lines = ["# color images", "# timestamp filename"]
    for i, stamp in enumerate(STAMPS):
        name = f"rgb/{stamp * 1e-9:.6f}.png"
        cv2.imwrite(str(folder / name), cv2.resize(noise(i), (640, 480)))
        lines.append(f"{stamp * 1e-9:.6f} {name}")
    (folder / "rgb.txt").write_text("\n".join(lines))
    times = START + np.arange(-10_000_000, 290_000_000, 10_000_000)
    write_tum(folder / "groundtruth.txt", body_path(times), times)
    return folder


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    folder = tmp_path / "robot"
    (folder / "image").mkdir(parents=True)
    lines = []
    for i, stamp in enumerate(STAMPS):
        cv2.imwrite(str(folder / "image" / f"{i:06d}.jpg"), noise(i))
        lines.append(f"{stamp * 1e-9:.6f} image/{i:06d}.jpg\n")
    (folder / "images.txt").write_text("".join(lines))
    (folder / "camera.yaml").write_text(CAMERA_INFO)
    return folder


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    folder = tmp_path / "chess" / "seq-01"
    folder.mkdir(parents=True)
    for i, pose in enumerate(body_path(STAMPS)):
        cv2.imwrite(str(folder / f"frame-{i:06d}.color.png"), noise(i))
        np.savetxt(folder / f"frame-{i:06d}.pose.txt", pose)
    np.savetxt(folder / "camera-intrinsics.txt", np.reshape(K, (3, 3)))
    return folder


# --- what they mean ------------------------------------------------------------------------------


def test_a_flight_with_one_camera(euroc: Path) -> None:
    """The camera's pose follows from the body's; the last image has no truth after it."""
    source = open_source(str(euroc), cameras="mono")
    assert (source.name, source.camera, len(source)) == (
        "flight",
        Camera(130.0, 132.0, 78.0, 61.0),
        COUNT,
    )
    assert source.T_w_c is not None
    assert np.isnan(source.T_w_c[-1]).all()
    known = body_path(STAMPS[:-1]) @ T_BODY_LEFT
    np.testing.assert_allclose(source.T_w_c[:-1], known, atol=1e-6)
    truth = true_trajectory(source)
    assert truth is not None
    assert truth.stamps_ns.tolist() == STAMPS[:-1].tolist()
    frames = list(source)
    assert [frame.stamp_ns for frame in frames] == STAMPS.tolist()
    assert frames[0].right is None
    expected = cv2.undistort(noise(20), np.reshape(K, (3, 3)), np.array(D))
    inside = (slice(10, -10), slice(10, -10))
    difference = np.abs(frames[2].left[inside].astype(int) - expected[inside])
    assert difference.mean() < 1.0
    assert len(list(open_source(str(euroc / "mav0"), max_frames=2, cameras="mono"))) == 2


def test_a_rectified_pair_sees_points_in_the_same_rows(euroc: Path) -> None:
    left, T_body_left = read_sensor(euroc / "mav0" / "cam0" / "sensor.yaml")
    right, T_body_right = read_sensor(euroc / "mav0" / "cam1" / "sensor.yaml")
    T_right_left = lie.se3_inverse(T_body_right) @ T_body_left
    pair, (raw_left, raw_right), R = rectify(left, right, T_right_left)
    assert pair.baseline_m == pytest.approx(np.linalg.norm(T_LEFT_RIGHT[:3, 3]), rel=1e-6)
    points = np.array([[0.1, -0.2, 3.0], [0.5, 0.4, 5.0], [-0.4, 0.1, 2.0]])
    in_right = points @ T_right_left[:3, :3].T + T_right_left[:3, 3]
    expected = pair.project(points @ R.T)  # of the rectified left camera
    for raw, seen, columns in (
        (raw_left, points, expected[:, [0, 1]]),
        (raw_right, in_right, expected[:, [2, 1]]),
    ):
        pixels = cv2.projectPoints(
            seen, np.zeros(3), np.zeros(3), np.reshape(K, (3, 3)), np.array(D)
        )[0][:, 0]
        for pixel, wanted in zip(pixels, columns, strict=True):
            # A blob of the raw image is where the rectified camera has the point.
            v, u = np.mgrid[:HEIGHT, :WIDTH]
            blob = 250.0 * np.exp(-((u - pixel[0]) ** 2 + (v - pixel[1]) ** 2) / 8.0)
            found = raw.undistort(blob.astype(np.uint8)).astype(float)
            centre = [(found * axis).sum() / found.sum() for axis in (u, v)]
            np.testing.assert_allclose(centre, wanted, atol=0.15)


def test_a_flight_with_both_cameras(euroc: Path) -> None:
    source = open_source(str(euroc))
    assert isinstance(source.camera, StereoCamera)
    assert source.T_w_c is not None
    _, _, R = rectify(
        read_sensor(euroc / "mav0" / "cam0" / "sensor.yaml")[0],
        read_sensor(euroc / "mav0" / "cam1" / "sensor.yaml")[0],
        lie.se3_inverse(T_LEFT_RIGHT),
    )
    turned = T_BODY_LEFT @ lie.se3_from(R.T, np.zeros(3))
    np.testing.assert_allclose(source.T_w_c[:-1], body_path(STAMPS[:-1]) @ turned, atol=1e-6)
    assert all(frame.right is not None for frame in source)
    (euroc / "mav0" / "cam1" / "data.csv").write_text(
        "".join(f"{stamp + 100},{stamp}.png\n" for stamp in STAMPS[:-1])
    )
    assert (len(open_source(str(euroc))), open_source(str(euroc)).unmatched) == (COUNT - 1, 1)


def test_a_hand_held_kinect(tum: Path) -> None:
    source = open_source(str(tum), cameras="mono")
    assert source.camera == Camera(517.306408, 516.469215, 318.643040, 255.313989)
    assert source.T_w_c is not None
    np.testing.assert_allclose(source.T_w_c, body_path(STAMPS), atol=1e-6)
    assert next(iter(source)).left.shape == (480, 640)
    listed = source.stamps_ns.tolist()
    (tum / "rgb.txt").unlink()
    assert open_source(str(tum), cameras="mono").stamps_ns.tolist() == listed
    renamed = tum.rename(tum.with_name("desk"))
    with pytest.raises(FileError, match=r"camera\.yaml: is missing: .* --camera FILE"):
        open_source(str(renamed), cameras="mono")
    (renamed / "calibration.txt").write_text("500 501 320 240 0.1 0.2 0 0 0.3\n")
    assert open_source(str(renamed), cameras="mono").camera == Camera(500, 501, 320, 240)


def test_a_robot_and_a_given_camera(robot: Path, tmp_path: Path) -> None:
    source = open_source(str(robot), cameras="mono")
    assert (source.camera, source.T_w_c) == (Camera(130.0, 132.0, 78.0, 61.0), None)
    better = tmp_path / "better.yaml"
    better.write_text(CAMERA_INFO.replace("130.0", "140.0"))
    given = open_source(str(robot), cameras="mono", camera=better)
    assert given.camera == Camera(140.0, 132.0, 78.0, 61.0)
    assert not np.array_equal(next(iter(given)).left, next(iter(source)).left)
    with pytest.raises(HydraNetError, match="--camera: the simulated street"):
        open_source("street", camera=better)


def test_a_scene(scene: Path) -> None:
    source = open_source(str(scene), cameras="mono")
    assert source.camera == Camera(130.0, 132.0, 78.0, 61.0)
    np.testing.assert_allclose(source.T_w_c, body_path(STAMPS), atol=1e-9)
    assert source.stamps_ns[3] == 100_000_000
    np.testing.assert_array_equal(list(source)[4].left, noise(4))  # not distorted: as it is
    (scene / "frame-000002.pose.txt").unlink()
    truth = true_trajectory(open_source(str(scene), cameras="mono"))
    assert truth is not None
    assert len(truth) == COUNT - 1
    (scene / "camera-intrinsics.txt").unlink()
    default = open_source(str(scene), cameras="mono")
    assert default.camera == Camera(585.0, 585.0, 320.0, 240.0)
    with pytest.raises(FileError, match="image has 160x120 pixels, its camera_info says 640x480"):
        next(iter(default))


@pytest.mark.parametrize("name", ["tum", "robot", "scene"])
def test_one_camera_is_no_pair(name: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises(FileError, match="has one camera, no stereo pair"):
        open_source(str(request.getfixturevalue(name)))


def test_given_poses_are_those_of_the_camera(euroc: Path, tmp_path: Path) -> None:
    write_tum(tmp_path / "mine.tum", body_path(STAMPS), STAMPS)
    source = open_source(str(euroc), tmp_path / "mine.tum", cameras="mono")
    np.testing.assert_allclose(source.T_w_c, body_path(STAMPS), atol=1e-6)


def test_lists_are_matched_by_the_nearest_stamps() -> None:
    lists = [[(10**8 * i + late, Path(f"{i}")) for i in range(20)] for late in (0, 30_000_000)]
    frames, alone = matched(lists)
    assert all(left[1] == right[1] for left, right in frames)
    assert len(frames) >= 15  # the first ones teach it how far apart stamps may be
    assert alone == 40 - 2 * len(frames)


def test_models_of_distortion(tmp_path: Path) -> None:
    path = tmp_path / "sensor.yaml"
    path.write_text(sensor(T_BODY_LEFT, "equidistant"))
    file, _ = read_sensor(path)
    assert file.distortion_model == "equidistant"
    image = np.zeros((HEIGHT, WIDTH), np.uint8)
    assert file.raw_camera().undistort(image).shape == image.shape
    text = tmp_path / "camera.txt"
    text.write_text("130 132 78 61 " + " ".join(map(str, [*D, 0.1, 0.2, 0.01, 0.02])))
    assert read_camera(text).distortion_model == "rational_polynomial"
    path.write_text(sensor(T_BODY_LEFT, "omni"))
    with pytest.raises(FileError, match=r"sensor\.yaml: .*distortion model 'omni'"):
        read_sensor(path)[0].raw_camera()


def test_samples_may_have_equal_stamps(tmp_path: Path) -> None:
    path = tmp_path / "imu.csv"
    path.write_text("# t,wx,wy,wz\n1.0,1,2,3,9\n1.0,4,5,6,9\n1.5,7,8,9,9\n")
    stamps, values = read_samples(path, 3)
    assert stamps.tolist() == [10**9, 10**9, 15 * 10**8]
    assert values.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


# --- what is wrong with them ---------------------------------------------------------------------


def text(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


def other_size(folder: Path) -> None:
    cv2.imwrite(str(folder / "image" / "000002.jpg"), np.zeros((HEIGHT, WIDTH // 2), np.uint8))


SENSOR, LIST = "mav0/cam0/sensor.yaml", "mav0/cam0/data.csv"


@pytest.mark.parametrize(
    ("name", "harm", "why"),
    [
        ("euroc", text(SENSOR, ""), "sensor.yaml: intrinsics must be 4 numbers, got none"),
        ("euroc", text(SENSOR, "a: [1, 2"), "sensor.yaml: is not YAML"),
        ("euroc", text(SENSOR, "intrinsics: [1, 2, x, 4]"), "something else than numbers"),
        ("euroc", text(SENSOR, "intrinsics: [1, 2, .nan, 4]"), "not finite"),
        ("euroc", text(SENSOR, sensor(2.0 * T_BODY_LEFT)), "T_BS is not a rigid-body pose"),
        ("euroc", text(SENSOR, "resolution: 4\nintrinsics: [9, 9, 9, 9]"), "[width, height]"),
        ("euroc", text(LIST, "#nothing\n"), "data.csv: names no image"),
        ("euroc", text(LIST, "1.5,a.png\n"), "data.csv:1: expected a stamp in nanoseconds"),
        ("euroc", text(LIST, "9" * 400 + ",a.png\n"), "data.csv:1: "),
        ("euroc", text(LIST, "1,a.png\n"), "a.png: is missing, but listed"),
        ("euroc", text(LIST, "1,../../a.png\n"), "data.csv:1: names an image outside"),
        ("euroc", text(LIST, "2,a.png\n1,b.png\n"), "data.csv:2: stamps must increase"),
        ("euroc", cut(LIST, 60), "is missing, but listed"),
        ("euroc", cut(LIST, 35), "data.csv:2: expected a stamp and the name"),
        ("euroc", text("mav0/groundtruth.txt", ""), None),
        ("tum", text("rgb.txt", "1.0\n"), "rgb.txt:1: expected a stamp and the name"),
        ("tum", text("rgb.txt", "nan rgb/a.png\n"), "rgb.txt:1: stamps must be finite"),
        ("tum", text("rgb.txt", "1.0 /etc/a.png\n"), "rgb.txt:1: names an image outside"),
        ("tum", text("groundtruth.txt", "1 0 0 0 0 0 0 1\n"), "has no pose at the time"),
        ("tum", text("groundtruth.txt", "1 0 0 0\n"), "groundtruth.txt:1: expected 12 numbers"),
        ("robot", text("camera.yaml", "a: 1"), "camera.yaml: has no camera_matrix"),
        ("robot", text("camera.yaml", "camera_matrix: {data: 7}"), "must be 9 numbers"),
        ("robot", text("camera.yaml", CAMERA_INFO.replace("130.0", "0")), "uncalibrated"),
        ("robot", text("camera.yaml", CAMERA_INFO.replace("78.0", "780")), "principal point"),
        ("robot", text("camera.yaml", CAMERA_INFO.replace("160", "1e9")), "the image size must"),
        ("robot", text("camera.yaml", CAMERA_INFO.replace("160", "320")), "is of other images"),
        ("robot", cut("image/000001.jpg", 200), "000001.jpg: is cut off"),
        ("robot", other_size, "000002.jpg: has 80x120 pixels"),
        ("scene", text("frame-000001.pose.txt", "1 0 0"), "expected 16 finite numbers, got 3"),
        ("scene", text("frame-000001.pose.txt", "2 " * 16), "is not a rigid-body pose"),
        ("scene", text("camera-intrinsics.txt", "1 2 3"), "the calibration must be 9 or 4"),
        ("scene", text("frame-000001.color.jpg", "x"), "is there twice"),
        ("scene", text("frame-00000b.color.jpg", "x"), "expected a name like frame-000000"),
    ],
)
def test_what_is_wrong_is_one_line(
    name: str, harm: Callable[[Path], None], why: str | None, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(name)
    harm(folder)
    if why is None:  # the file beside it comes first
        assert open_source(str(folder), cameras="mono").T_w_c is not None
        return
    with pytest.raises(FileError) as caught:
        list(open_source(str(folder), cameras="mono"))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("T", "model", "why"),
    [
        (lie.se3_inverse(T_LEFT_RIGHT), "radial-tangential", "left before right"),
        (lie.se3_from(np.eye(3), [0.0, 0.2, 0.0]), "radial-tangential", "side by side"),
        (T_LEFT_RIGHT, "equidistant", "another distortion model"),
    ],
)
def test_pairs_that_cannot_be_rectified(euroc: Path, T: np.ndarray, model: str, why: str) -> None:
    (euroc / "mav0" / "cam1" / "sensor.yaml").write_text(sensor(T_BODY_LEFT @ T, model))
    with pytest.raises(FileError, match=why):
        open_source(str(euroc))
    shutil.rmtree(euroc / "mav0" / "cam1")
    with pytest.raises(FileError, match="cam1: is missing"):
        open_source(str(euroc))


def test_a_pair_needs_its_own_calibration(euroc: Path, robot: Path) -> None:
    with pytest.raises(HydraNetError, match="use --cameras mono"):
        open_source(str(euroc), camera=robot / "camera.yaml")
    shutil.rmtree(euroc / "mav0" / "cam1")
    (euroc / "mav0" / "cam0" / "sensor.yaml").unlink()
    source = open_source(str(euroc), cameras="mono", camera=robot / "camera.yaml")
    assert source.T_w_c is None  # where the camera is on the body is not known


# --- real ones -----------------------------------------------------------------------------------


def essential_rotation(camera: Camera, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    corners = cv2.goodFeaturesToTrack(first, 1000, 0.01, 8)
    there, seen, _ = cv2.calcOpticalFlowPyrLK(first, second, corners, None)
    good = seen[:, 0] > 0
    E, _ = cv2.findEssentialMat(
        corners[good], there[good], camera.matrix, cv2.USAC_MAGSAC, 0.999, 0.8
    )
    both = cv2.decomposeEssentialMat(E[:3])[:2]
    return min(both, key=lambda C: float(np.linalg.norm(lie.so3_log(C))))


@pytest.mark.parametrize(
    ("name", "frames", "bound_deg"),
    [("euroc", 20, 0.06), ("tum/fr1_xyz", 20, 0.6), ("seven_scenes", 20, 0.3)],
)
def test_the_truth_is_that_of_the_images(
    data: Path, name: str, frames: int, bound_deg: float
) -> None:
    """Five-point on undistorted images agrees with the truth: axes and stamps are right."""
    if not (data / name).is_dir():
        pytest.skip(f"no {name} in {data}")
    source = open_source(str(data / name), max_frames=frames, cameras="mono")
    assert source.T_w_c is not None
    images = [frame.left for frame in source]
    T = lie.se3_inverse(source.T_w_c[1:]) @ source.T_w_c[:-1]
    errors = [
        lie.so3_log(essential_rotation(source.camera, images[i], images[i + 1]) @ C.T)
        for i, C in enumerate(T[:, :3, :3])
    ]
    assert np.degrees(np.median(np.linalg.norm(errors, axis=1))) < bound_deg


def test_rows_of_a_real_pair_agree(data: Path) -> None:
    if not (data / "euroc").is_dir():
        pytest.skip(f"no euroc in {data}")
    source = open_source(str(data / "euroc"), max_frames=3)
    rows, columns = [], []
    for frame in source:
        corners = cv2.goodFeaturesToTrack(frame.left, 500, 0.01, 8)
        there, seen, _ = cv2.calcOpticalFlowPyrLK(frame.left, frame.right, corners, None)
        moved = (there - corners)[seen[:, 0] > 0, 0]
        rows.append(moved[:, 1])
        columns.append(moved[:, 0])
    assert np.median(np.abs(np.concatenate(rows))) < 0.5
    assert np.median(np.concatenate(columns)) < -2.0  # to the left in the right image
