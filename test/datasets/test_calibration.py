"""camera_info becomes cameras that see what the sensor sees."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

from sensor_msgs.msg import CameraInfo, RegionOfInterest

from hydranet_ros.datasets import sensor_messages as calibration
from hydranet_ros.errors import BadInput
from hydranet_ros.geometry.camera import Camera

K = [500.0, 0.0, 320.0, 0.0, 510.0, 240.0, 0.0, 0.0, 1.0]


def info(tx: float = 0.0, **fields: object) -> CameraInfo:
    P = [400.0, 0.0, 310.0, tx, 0.0, 400.0, 250.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    made = CameraInfo(width=640, height=480, distortion_model="plumb_bob", k=K, p=P)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def offset(pixels: float) -> CameraInfo:
    """The right one of a pair, with a cx that the left one does not have."""
    made = info(tx=-40.0)
    made.p[2] += pixels
    return made


def test_a_pair_may_differ_by_what_drivers_round() -> None:
    found = calibration.stereo_camera(info(), offset(0.1))
    assert found.left == Camera(400.0, 400.0, 310.0, 250.0)
    assert found.baseline_m == pytest.approx(0.1)


def test_a_rectified_image_has_p() -> None:
    assert calibration.rectified_camera(info()) == Camera(400.0, 400.0, 310.0, 250.0)


def test_the_baseline_is_that_of_both_projections() -> None:
    camera = calibration.stereo_camera(info(tx=8.0), info(tx=-40.0))
    assert camera.baseline_m == pytest.approx(0.12)


def test_binning_and_a_region_of_interest_are_taken_out() -> None:
    roi = RegionOfInterest(x_offset=100, y_offset=40, width=400, height=300)
    cut = info(binning_x=2, binning_y=4, roi=roi)
    assert calibration.rectified_camera(cut) == Camera(200.0, 100.0, 105.0, 52.5)
    assert calibration.image_shape(cut) == (75, 200)
    # A point of the full image is found where the cut and binned one has it.
    full, small = calibration.rectified_camera(info()), calibration.rectified_camera(cut)
    u, v = full.project([0.3, -0.1, 2.0])
    np.testing.assert_allclose(small.project([0.3, -0.1, 2.0]), [(u - 100) / 2, (v - 40) / 4])


@pytest.mark.parametrize(
    ("model", "d"),
    [
        ("plumb_bob", [-0.3, 0.1, 1e-3, -5e-4, 0.0]),
        ("rational_polynomial", [0.1, -0.05, 1e-3, 0.0, 0.01, 0.2, 0.0, 0.0]),
        ("equidistant", [0.02, -0.01, 0.003, 0.0]),
    ],
)
def test_a_raw_image_is_undistorted(model: str, d: list[float]) -> None:
    raw = calibration.raw_camera(info(distortion_model=model, d=d))
    assert raw.camera == Camera(500.0, 510.0, 320.0, 240.0)
    # A blob drawn where the distorted lens puts a point must end up where a pinhole puts it.
    matrix = np.array(K).reshape(3, 3)
    for point in ([0.25, 0.1, 1.0], [-0.3, -0.2, 1.0], [0.0, 0.0, 1.0]):
        project = cv2.fisheye.projectPoints if model == "equidistant" else cv2.projectPoints
        arguments = (np.array([[point]]), np.zeros(3), np.zeros(3), matrix, np.array(d))
        (u, v) = project(*arguments)[0].ravel()
        x, y = np.meshgrid(np.arange(640), np.arange(480))
        blob = 255.0 * np.exp(-((x - u) ** 2 + (y - v) ** 2) / 18.0)
        weights = raw.undistort(blob.round().astype(np.uint8)).astype(float)
        found = np.array([(weights * x).sum(), (weights * y).sum()]) / weights.sum()
        np.testing.assert_allclose(found, raw.camera.project(point), atol=0.2)


@pytest.mark.parametrize("model", ["plumb_bob", "equidistant"])
def test_a_calibration_without_a_size_has_that_of_the_image(model: str) -> None:
    """As many drivers send it: width and height 0."""
    d, image = [-0.3, 0.1, 0.0, 0.0], np.random.default_rng(0).integers(0, 256, (480, 640))
    known = calibration.raw_camera(info(distortion_model=model, d=d))
    for empty in ({"width": 0, "height": 0}, {"width": 0}, {"height": 0}):
        blank = info(distortion_model=model, d=d, **empty)
        calibration.check_shape(blank, (480, 640))
        found = calibration.raw_camera(blank).undistort(image.astype(np.uint8))
        np.testing.assert_array_equal(found, known.undistort(image.astype(np.uint8)))


@pytest.mark.parametrize("d", [[], [0.0] * 4, [0.0] * 5])
def test_a_fisheye_without_coefficients_is_a_fisheye(d: list[float]) -> None:
    """r = f theta: a ray at 45 degrees is at f pi / 4 in the raw image, at f in a pinhole's."""
    raw = calibration.raw_camera(info(distortion_model="equidistant", d=d, k=[200.0, *K[1:]]))
    assert calibration.is_distorted(info(distortion_model="equidistant", d=d))
    image = np.zeros((480, 640), dtype=np.uint8)
    image[235:246, round(320 + 200 * np.pi / 4) - 5 : round(320 + 200 * np.pi / 4) + 6] = 255
    columns = np.nonzero(raw.undistort(image)[240])[0]
    assert columns.mean() == pytest.approx(320 + 200, abs=2.0)


def test_coefficients_that_a_driver_leaves_out_are_zero() -> None:
    image = np.random.default_rng(0).integers(0, 256, (480, 640), dtype=np.uint8)
    short, full = ([-0.3], [-0.3, 0.0, 0.0, 0.0, 0.0])
    found = [calibration.raw_camera(info(d=d)).undistort(image) for d in (short, full)]
    np.testing.assert_array_equal(*found)


def test_a_region_may_lie_beside_the_principal_point() -> None:
    corner = info(roi=RegionOfInterest(x_offset=400, y_offset=300, width=200, height=100))
    assert calibration.rectified_camera(corner) == Camera(400.0, 400.0, -90.0, -50.0)


def test_without_a_size_the_principal_point_is_held_to_the_image() -> None:
    blank = info(width=0, height=0)
    camera = calibration.rectified_camera(blank)
    calibration.check_principal_point(blank, camera, (480, 640))
    with pytest.raises(BadInput, match="outside of the image of 200x100"):
        calibration.check_principal_point(blank, camera, (100, 200))


def test_without_distortion_nothing_is_resampled() -> None:
    image = np.random.default_rng(0).integers(0, 256, (480, 640), dtype=np.uint8)
    assert calibration.raw_camera(info(d=[0.0] * 5)).undistort(image) is image


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (lambda: calibration.raw_camera(info(k=[0.0] * 9)), r"K\[0\] = 0, an uncalibrated"),
        (lambda: calibration.rectified_camera(info(p=[0.0] * 12)), r"P\[0\] = 0"),
        (lambda: calibration.rectified_camera(info(k=[0.0] * 9)), r"K\[0\] = 0, an uncalibrated"),
        (lambda: calibration.raw_camera(info(k=[np.nan] * 9)), "a K that is not finite"),
        (lambda: calibration.rectified_camera(info(p=[np.inf] * 12)), "a P that is not finite"),
        (lambda: calibration.raw_camera(info(d=[np.nan])), "D that is not finite"),
        (lambda: calibration.raw_camera(info(k=[-1.0, *K[1:]])), "focal lengths must be positive"),
        (
            lambda: calibration.raw_camera(info(distortion_model="magic", d=[0.1])),
            "distortion model 'magic'",
        ),
        (lambda: calibration.raw_camera(info(d=[0.1] * 15)), "15 numbers in D"),
        (
            lambda: calibration.raw_camera(info(k=[*K[:2], 3200.0, *K[3:]])),
            r"principal point at \(3200, 240\), outside of the image of 640x480 pixels: calibrate",
        ),
        (
            lambda: calibration.rectified_camera(info(width=64, height=48)),
            "outside of the image of 64x48",
        ),
        (lambda: calibration.stereo_camera(info(), info(tx=40.0)), "swapped"),
        (lambda: calibration.stereo_camera(info(), info()), r"baseline of 0 m"),
        (lambda: calibration.stereo_camera(info(), info(p=[9.0] * 12)), "not of one rectified"),
        (lambda: calibration.stereo_camera(info(), info(k=[0.0] * 9)), r"K\[0\] = 0"),
        (lambda: calibration.stereo_camera(info(), offset(1.0)), "not of one rectified pair"),
        (lambda: calibration.stereo_camera(info(), info(tx=np.nan)), "a P that is not finite"),
        (lambda: calibration.check_shape(info(), (10, 20)), "20x10 pixels, .* says 640x480"),
    ],
)
def test_what_is_wrong_is_told(work: object, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        work()  # type: ignore[operator]
