from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hydranet_ros.gyro
from hydranet_ros.datasets.kitti import read_kitti_calibration
from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera
from hydranet_ros.gyro import flow
from hydranet_ros.gyro.flow import DisConfig, FarnebackConfig, FlowConfig, FlowEstimator
from hydranet_ros.gyro.grid import CanonicalGrid, CanonicalView
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

GRID = CanonicalGrid()
# As in KITTI 09, and a camera unlike it: other focal lengths, fx != fy, off-centre, much smaller.
KITTI, KITTI_SHAPE = Camera(707.0912, 707.0912, 601.8873, 183.1104), (370, 1226)
SMALL, SMALL_SHAPE = Camera(330.0, 310.0, 300.0, 95.0), (180, 620)
# Sees a tenth of the grid, right of its middle; WIDE sees all of it and more.
NARROW, NARROW_SHAPE = Camera(800.0, 800.0, 150.0, 90.0), (240, 480)
WIDE, WIDE_SHAPE = Camera(300.0, 300.0, 450.0, 250.0), (500, 900)

HAS_TORCH = find_spec("torch") is not None
NEEDS_TORCH = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
ON_DEVICE = [pytest.param(name, marks=NEEDS_TORCH) for name in ("dis_torch", "farneback_torch")]
METHODS = ["dis", "farneback", *ON_DEVICE]


@pytest.fixture(autouse=True)
def _one_thread():
    """Torch with more threads than free cores is many times slower."""
    if not HAS_TORCH:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def with_torch():
    """The modules torch and flow_torch."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from hydranet_ros.gyro import flow_torch

    return torch, flow_torch


def with_farneback():
    """Torch, and Farneback's method in it."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from hydranet_ros.gyro import farneback_torch

    return torch, farneback_torch.farneback


# --- a world without depth, known at every point -------------------------------------------------

WAVES = np.random.default_rng(3)
# Down to 6 pixels a wave where the canonical camera has 288 pixels to a unit.
WAVE_VECTOR = WAVES.normal(size=(48, 2)) * np.geomspace(15.0, 200.0, 48)[:, None]
PHASE = WAVES.uniform(0.0, 2.0 * np.pi, 48)


def texture(points):
    """Grey levels at (..., 2) points of a plane."""
    total = np.zeros(points.shape[:-1])
    for k, phase in zip(WAVE_VECTOR, PHASE, strict=True):
        total += np.cos(points @ k + phase)
    return np.clip(np.rint(128.0 + 18.0 * total), 0, 255).astype(np.uint8)


def pixels(shape):
    u, v = np.meshgrid(np.arange(shape[1]), np.arange(shape[0]))
    return np.stack([u, v], axis=-1).astype(np.float64)


def turned(points, C):
    """(..., 2) normalised coordinates as another camera sees them."""
    rays = np.concatenate([points, np.ones((*points.shape[:-1], 1))], axis=-1) @ C.T
    return rays[..., :2] / rays[..., 2:]


def photograph(camera, shape, C_1_c):
    """What a camera sees of the world, whose texture is fixed to frame 1."""
    return texture(turned(camera.normalise(pixels(shape)), C_1_c))


def shifted(shape, motion):
    return texture((pixels(shape) - motion) / 288.0)


PHI = np.array([0.004, -0.02, 0.012])  # of a sharp turn at 10 Hz
C_2_1 = lie.so3_exp(PHI)


def rotational_flow(C):
    return np.moveaxis(turned(GRID.centres, C) - GRID.centres, -1, 0)


@lru_cache(maxsize=8)
def rotated_pair(name):
    camera, shape = CAMERAS[name]
    return photograph(camera, shape, np.eye(3)), photograph(camera, shape, C_2_1.T)


CAMERAS = {
    "kitti": (KITTI, KITTI_SHAPE),
    "small": (SMALL, SMALL_SHAPE),
    "narrow": (NARROW, NARROW_SHAPE),
    "wide": (WIDE, WIDE_SHAPE),
}


def interior(mask, cells=4):
    """Cells at least so far from the edge of the grid and of the view."""
    ring = np.pad(mask.astype(np.uint8), 1)
    inner = cv2.erode(ring, np.ones((3, 3), dtype=np.uint8), iterations=cells)[1:-1, 1:-1]
    return inner > 0


def distances(a, b):
    """(2, ...) and (2, ...) -> (...) in pixels of the canonical image."""
    return np.linalg.norm(a - b, axis=0) * 288.0


# --- two images ----------------------------------------------------------------------------------


def torch_farneback(previous, current, config=None):
    torch, method = with_farneback()
    pair = (torch.from_numpy(image)[None] for image in (previous, current))
    return np.moveaxis(method(*pair, config)[0].numpy(), 0, -1)


@pytest.mark.parametrize("motion", [(0.0, 0.0), (1.3, -0.7), (-6.25, 2.5)], ids=str)
@pytest.mark.parametrize("method", [flow.dis, flow.farneback, torch_farneback])
def test_a_shift_is_found_to_a_fraction_of_a_pixel(method, motion):
    shape = (120, 200)
    found = method(shifted(shape, (0.0, 0.0)), shifted(shape, motion))
    assert found.shape == (*shape, 2)
    assert found.dtype == np.float32
    errors = np.linalg.norm(found - motion, axis=-1)[20:-20, 20:-20]
    assert np.mean(errors) < 0.05
    assert np.max(errors) < 0.3


def test_the_preset_is_the_papers():
    a, b = shifted((90, 140), (0, 0)), shifted((90, 140), (2.0, 1.0))
    expected = cv2.calcOpticalFlowFarneback(a, b, None, 0.5, 3, 15, 3, 5, 1.2, 0)
    np.testing.assert_array_equal(flow.farneback(a, b), expected)


@pytest.mark.parametrize("method", [flow.dis, flow.farneback])
@pytest.mark.parametrize(
    ("previous", "current", "message"),
    [
        (np.zeros((64, 64)), np.zeros((64, 64), np.uint8), r"uint8 .* got float64"),
        (np.zeros((64, 64), np.uint8), np.zeros((64, 63), np.uint8), r"\(64, 64\), got .*63\)"),
        (np.zeros((64, 64, 3), np.uint8), np.zeros((64, 64, 3), np.uint8), r"\(h, w\), got .*3\)"),
        (np.zeros((8, 64), np.uint8), np.zeros((8, 64), np.uint8), r"32 rows .* got \(8, 64\)"),
    ],
    ids=["type", "shapes differ", "colour", "too small"],
)
def test_images_that_are_no_pair(method, previous, current, message):
    with pytest.raises(ValueError, match=message):
        method(previous, current)


# --- Farneback in torch is that of OpenCV --------------------------------------------------------

CONFIGS = {
    "paper": FarnebackConfig(),
    "one level": FarnebackConfig(levels=0, iterations=1),
    "other pyramid": FarnebackConfig(pyramid_scale=0.7, levels=5, iterations=2),
    "other windows": FarnebackConfig(window=9, poly_n=7, poly_sigma=1.5),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("shape", [(97, 161), (144, 480), (33, 40)], ids=str)
def test_torch_agrees_with_opencv_on_a_rendered_pair(config, shape):
    pair = shifted(shape, (0.0, 0.0)), shifted(shape, (3.4, -1.2))
    for a, b in (pair, pair[::-1]):  # out of the image on every side
        difference = torch_farneback(a, b, config) - flow.farneback(a, b, config)
        assert np.linalg.norm(difference, axis=-1).mean() < 1e-4  # 7e-6; border included


@pytest.mark.parametrize("shape", [(97, 161), (64, 65)], ids=str)
def test_torch_agrees_with_opencv_where_nothing_can_be_found(shape):
    rng = np.random.default_rng(0)
    flat = np.full(shape, 90, dtype=np.uint8)
    noise, other = rng.integers(0, 256, (2, *shape), dtype=np.uint8)
    np.testing.assert_allclose(torch_farneback(flat, flat), 0.0, rtol=0, atol=1e-4)
    difference = torch_farneback(noise, other) - flow.farneback(noise, other)
    assert np.linalg.norm(difference, axis=-1).mean() < 0.02


def kitti_image(folder, index):
    found = sorted((folder / "image_0").glob(f"{index:06d}.*")) if folder.is_dir() else []
    if not found:
        pytest.skip(f"no frame {index} of KITTI in {folder}")
    return cv2.imread(str(found[0]), cv2.IMREAD_GRAYSCALE)


@pytest.mark.parametrize("index", range(10, 600, 30))
def test_torch_agrees_with_opencv_on_real_pairs(data, index):
    folder = data / "kitti" / "sequences" / "09"
    a, b = (kitti_image(folder, k) for k in (index, index + 1))
    difference = np.linalg.norm(torch_farneback(a, b) - flow.farneback(a, b), axis=-1)
    assert difference[20:-20, 20:-20].mean() < 0.005  # at most 0.001; 0.05 is asked for


def test_a_batch_is_a_loop():
    torch, farneback = with_farneback()
    motions = [(0.0, 0.0), (1.3, -0.7), (-4.0, 2.0)]
    previous = torch.from_numpy(np.stack([shifted((64, 90), m) for m in motions]))
    current = previous.flip(0)
    together = farneback(previous, current)
    for k in range(3):
        alone = farneback(previous[k : k + 1], current[k : k + 1])
        torch.testing.assert_close(together[k : k + 1], alone, rtol=0, atol=1e-4)


def test_float64_is_kept_and_agrees():
    torch, farneback = with_farneback()
    a, b = (torch.from_numpy(shifted((64, 90), m))[None] for m in ((0, 0), (1.3, -0.7)))
    fine = farneback(a.double(), b.double())
    assert fine.dtype == torch.float64
    assert farneback(a.half(), b.half()).dtype == torch.float32
    torch.testing.assert_close(farneback(a, b).double(), fine, rtol=0, atol=1e-3)


def test_torch_images_that_are_no_pair():
    torch, farneback = with_farneback()
    image = torch.zeros(1, 64, 64)
    with pytest.raises(ValueError, match=r"\(B, h, w\), got \(64, 64\) and \(64, 64\)"):
        farneback(image[0], image[0])
    with pytest.raises(ValueError, match=r"got \(1, 64, 64\) and \(1, 64, 63\)"):
        farneback(image, image[..., :-1])
    with pytest.raises(ValueError, match=r"one type .* got torch.float32 on cpu and torch.uint8"):
        farneback(image, image.to(torch.uint8))


# --- on the canonical grid -----------------------------------------------------------------------


@pytest.mark.parametrize("name", CAMERAS)
@pytest.mark.parametrize("method", METHODS)
def test_a_rotation_gives_its_analytic_flow_on_the_grid(method, name):
    """x/z, y/z move as C_2_1 turns their rays, whatever the camera."""
    camera, shape = CAMERAS[name]
    found = FlowEstimator(camera, shape, FlowConfig(method))(*rotated_pair(name))
    assert found.flow.shape == (2, GRID.rows, GRID.columns)
    assert found.flow.dtype == np.float32
    inner = interior(found.mask)
    errors = distances(found.flow, rotational_flow(C_2_1))[inner]
    # The motion is 6 pixels; what remains at some edges is the window of the method leaving it.
    assert np.median(errors) < 0.05
    assert np.percentile(errors, 95) < 0.25


@pytest.mark.parametrize("method", METHODS)
def test_cameras_agree_on_the_grid(method):
    fields = [
        FlowEstimator(*CAMERAS[name], FlowConfig(method))(*rotated_pair(name))
        for name in ("kitti", "small")
    ]
    both = interior(fields[0].mask & fields[1].mask)
    assert np.median(distances(fields[0].flow, fields[1].flow)[both]) < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_swapped_images_give_the_reverse_flow(method):
    estimator = FlowEstimator(SMALL, SMALL_SHAPE, FlowConfig(method))
    found = estimator(*rotated_pair("small")[::-1])
    errors = distances(found.flow, rotational_flow(C_2_1.T))[interior(found.mask)]
    assert np.median(errors) < 0.05


@pytest.mark.parametrize("name", CAMERAS)
def test_what_both_images_show_is_trusted(name):
    camera, shape = CAMERAS[name]
    found = FlowEstimator(camera, shape, FlowConfig("dis"))(*rotated_pair(name))
    assert not (found.trusted & ~found.mask).any()
    assert found.trusted[interior(found.mask)].mean() > 0.95


@pytest.mark.parametrize("method", METHODS)
def test_flow_is_not_trusted_where_the_pictures_have_nothing_in_common(method):
    """There the flow is anything; elsewhere it is as right as it was."""
    first, second = (image.copy() for image in rotated_pair("kitti"))
    rng = np.random.default_rng(0)
    height, width = first.shape
    second[:, width // 3 : width // 2] = rng.integers(0, 256, (height, width // 2 - width // 3))
    found = FlowEstimator(KITTI, KITTI_SHAPE, FlowConfig(method))(first, second)
    errors = distances(found.flow, rotational_flow(C_2_1))
    wrong = errors > 2.0
    assert wrong.mean() > 0.05
    assert found.trusted[wrong].mean() < 0.1
    inner = interior(found.mask)
    assert found.trusted[inner & (errors < 0.2)].mean() > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_flow_is_checked_only_where_asked_for(method):
    pair = rotated_pair("small")
    dis, farneback = DisConfig(tolerance_px=0.0), FarnebackConfig(tolerance_px=0.0)
    config = FlowConfig(method, dis=dis, farneback=farneback)
    found = FlowEstimator(SMALL, SMALL_SHAPE, config)(*pair)
    assert found.trusted is None
    checked = FlowEstimator(SMALL, SMALL_SHAPE, FlowConfig(method))(*pair)
    assert checked.trusted[interior(found.mask)].mean() > 0.95
    np.testing.assert_allclose(found.flow, checked.flow, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CAMERAS)
def test_what_a_camera_does_not_see_is_masked(name):
    camera, shape = CAMERAS[name]
    estimator = FlowEstimator(camera, shape)
    found = estimator(*rotated_pair(name))
    np.testing.assert_array_equal(found.mask, GRID.seen_by(camera, shape))
    assert not found.flow[:, ~found.mask].any()
    assert np.isfinite(found.flow).all()
    # The cameras' solid angles on the plane z = 1, as shares of the grid's.
    expected = {"kitti": 0.437, "small": 0.498, "narrow": 0.085, "wide": 1.0}[name]
    assert expected - 0.02 <= found.mask.mean() <= expected


@pytest.mark.parametrize("name", CAMERAS)
def test_the_grid_of_a_camera_holds_all_that_it_sees(name):
    """Up to 100 x 80 deg, in eights, and no more than needed."""
    camera, shape = CAMERAS[name]
    grid = GRID.covering(camera, shape)
    assert grid.cell == GRID.cell
    assert (grid.rows % 8, grid.columns % 8) == (0, 0)
    corners = np.array([[-0.5, -0.5], [shape[1] - 0.5, shape[0] - 0.5]])
    reach = np.abs(camera.normalise(corners)).max(axis=0)
    reach = np.minimum(reach, np.tan(np.radians([50.0, 40.0])) + 5e-3)
    half = 0.5 * grid.cell * np.array([grid.columns, grid.rows])
    assert (half >= reach - 5e-3).all()
    assert (half < reach + 4 * grid.cell).all()
    if name != "wide":  # which sees 112 deg
        more = CanonicalGrid(grid.rows + 64, grid.columns + 64, grid.cell)
        assert more.seen_by(camera, shape).sum() == grid.seen_by(camera, shape).sum()


def test_a_camera_on_its_side_has_its_grid_on_its_side():
    camera, shape = Camera(330.0, 310.0, 200.0, 95.0), (180, 440)
    turned_camera = Camera(camera.fy, camera.fx, shape[0] - 1 - camera.cy, camera.cx)
    upright = GRID.covering(camera, shape)
    grid = GRID.covering(turned_camera, shape[::-1])
    assert (grid.rows, grid.columns) == (upright.columns, upright.rows)
    seen = upright.seen_by(camera, shape)
    np.testing.assert_array_equal(grid.seen_by(turned_camera, shape[::-1]), np.rot90(seen, -1))


@pytest.mark.parametrize("name", CAMERAS)
@pytest.mark.parametrize("k", [1, 3, 4])
def test_flow_of_the_camera_is_averaged_over_the_cells(name, k):
    """Where flow is affine, its mean over a cell is that at its centre: no offset, no scale."""
    camera, shape = CAMERAS[name]
    if name == "narrow" and k == 1:
        pytest.skip("sees less than 32 of the grid's rows")
    view = CanonicalView(camera, shape, pixels_per_cell=k)
    A = np.array([[0.03, -0.01], [0.02, 0.04]])
    at = camera.normalise(pixels(shape))
    found = view.camera_flow_to_grid((at @ A.T * (camera.fx, camera.fy)).astype(np.float32))
    expected = np.moveaxis(GRID.centres @ A.T, -1, 0)
    # 1/32 pixel of the camera is the step of OpenCV's interpolation; mirrors at the very edge.
    inner = interior(found.mask, 2)
    np.testing.assert_allclose(found.flow[:, inner], expected[:, inner], rtol=0, atol=5e-5)


def test_the_grid_has_the_mean_over_a_cell_and_not_a_sample():
    shape = 3 * GRID.rows, 3 * GRID.columns
    view = CanonicalView(GRID.camera(3), shape, margin_cells=0)
    rng = np.random.default_rng(0)
    field = rng.normal(size=(*shape, 2)).astype(np.float32)
    cells = field.reshape(GRID.rows, 3, GRID.columns, 3, 2)
    expected = cells.mean(axis=(1, 3)) / 288.0
    np.testing.assert_allclose(
        view.to_grid(field).flow, np.moveaxis(expected, -1, 0), rtol=0, atol=1e-7
    )


def test_a_fine_pattern_does_not_alias():
    """Stripes that the canonical camera cannot resolve become grey, not coarse stripes."""
    view = CanonicalView(KITTI, KITTI_SHAPE)
    stripes = np.where(pixels(KITTI_SHAPE)[..., 0] % 2 > 0.5, 255, 0).astype(np.uint8)
    seen = view.image(stripes)
    assert seen.std() < 0.25 * stripes.std()
    assert abs(seen.mean() - 127.5) < 2.0


@pytest.mark.parametrize("margin", [0, 8])
@pytest.mark.parametrize("name", CAMERAS)
def test_torch_resamples_as_opencv_does(name, margin):
    torch, flow_torch = with_torch()
    camera, shape = CAMERAS[name]
    view = CanonicalView(camera, shape, margin_cells=margin)
    device_flow = flow_torch.DeviceFlow(view)
    image = rotated_pair(name)[0]
    warped = device_flow.image(torch.from_numpy(image)[None])[0].numpy()
    difference = np.abs(warped - view.image(image))
    assert difference.mean() < 0.1  # of whole grey levels
    assert difference.max() <= 1.0
    field = np.random.default_rng(0).normal(size=(*warped.shape, 2)).astype(np.float32)
    on_device = device_flow.to_grid(torch.from_numpy(field).permute(2, 0, 1)[None])[0]
    np.testing.assert_allclose(on_device, view.to_grid(field).flow, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(device_flow.mask, view.mask)
    field = cv2.GaussianBlur(np.float32(pixels(shape)) ** 1.1, (0, 0), 3.0)
    on_device = device_flow.camera_flow_to_grid(torch.from_numpy(field).permute(2, 0, 1)[None])[0]
    expected = view.camera_flow_to_grid(field).flow
    np.testing.assert_allclose(on_device, expected, rtol=1e-3, atol=1e-3)


@NEEDS_TORCH
def test_the_torch_estimator_agrees_with_opencvs_farneback():
    pair = rotated_pair("kitti")
    a, b = (
        FlowEstimator(KITTI, KITTI_SHAPE, FlowConfig(method))(*pair)
        for method in ("farneback", "farneback_torch")
    )
    assert distances(a.flow, b.flow).mean() < 0.05


@pytest.mark.parametrize("method", ON_DEVICE)
def test_nothing_leaves_the_device(method):
    """The meta device has shapes but no values: any copy to the host or look at one would fail."""
    torch, flow_torch = with_torch()
    device_flow = flow_torch.DeviceFlow(
        CanonicalView(SMALL, SMALL_SHAPE), device=torch.device("meta"), method=method
    )
    images = torch.zeros(4, *SMALL_SHAPE, dtype=torch.uint8, device="meta")
    found = device_flow(images, images)
    assert found.flow.shape == (4, 2, GRID.rows, GRID.columns)
    assert found.trusted.shape == (4, GRID.rows, GRID.columns)
    assert found.flow.device.type == device_flow.mask.device.type == "meta"
    assert device_flow.texture(device_flow.image(images)).shape[1] == 3
    field = torch.zeros(4, 2, *SMALL_SHAPE, device="meta")
    assert device_flow.camera_flow_to_grid(field).shape == found.flow.shape


@pytest.mark.parametrize("method", ON_DEVICE)
def test_a_gpu_gives_what_the_cpu_gives(method):
    torch, _ = with_torch()
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    a, b = (
        FlowEstimator(KITTI, KITTI_SHAPE, FlowConfig(method), device=device)
        for device in ("cpu", "cuda")
    )
    difference = distances(a(*rotated_pair("kitti")).flow, b(*rotated_pair("kitti")).flow)
    assert difference.mean() < 0.01


# --- the estimator -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_equal_images_give_equal_bytes(method):
    pair = rotated_pair("small")
    estimator = FlowEstimator(SMALL, SMALL_SHAPE, FlowConfig(method))
    first = estimator(*pair)
    again = FlowEstimator(SMALL, SMALL_SHAPE, FlowConfig(method))(*pair)
    np.testing.assert_array_equal(first.flow, again.flow)
    np.testing.assert_array_equal(first.flow, estimator(*pair).flow)


def test_dis_does_not_depend_on_the_number_of_threads():
    pair, before = rotated_pair("kitti"), cv2.getNumThreads()
    fields = []
    try:
        for threads in (1, 2, 5):
            cv2.setNumThreads(threads)
            fields.append(FlowEstimator(KITTI, KITTI_SHAPE)(*pair).flow)
    finally:
        cv2.setNumThreads(before)
    np.testing.assert_array_equal(fields[0], fields[1])
    np.testing.assert_array_equal(fields[0], fields[2])


@pytest.mark.parametrize("method", ["dis", *ON_DEVICE])
def test_a_sequence_warps_every_image_once(monkeypatch, method):
    _, flow_torch = with_torch()
    images = [photograph(SMALL, SMALL_SHAPE, lie.so3_exp(-k * PHI)) for k in range(4)]
    calls = []
    for owner in (CanonicalView, flow_torch.DeviceFlow):
        warp = owner.image
        monkeypatch.setattr(
            owner,
            "image",
            lambda self, image, warp=warp, owner=owner: calls.append(owner) or warp(self, image),
        )
    config = FlowConfig(method)
    estimator = FlowEstimator(SMALL, SMALL_SHAPE, config)
    fields = [estimator(a, b).flow for a, b in pairwise(images)]
    owner, other = (CanonicalView, flow_torch.DeviceFlow)[:: 1 if method == "dis" else -1]
    assert calls.count(owner) == len(images)  # for the texture as well
    assert calls.count(other) == 0
    for k, found in enumerate(fields):
        alone = FlowEstimator(SMALL, SMALL_SHAPE, config)(images[k], images[k + 1])
        np.testing.assert_array_equal(found, alone.flow)


def test_a_buffer_that_is_filled_again_is_seen():
    first, second = rotated_pair("small")
    estimator = FlowEstimator(SMALL, SMALL_SHAPE)
    buffer = second.copy()
    estimator(first, buffer)
    buffer[:] = first
    assert not estimator(buffer, first).flow.any()


@pytest.mark.parametrize("method", METHODS)
def test_images_in_part_of_an_array_or_read_only_will_do(method):
    first, second = rotated_pair("small")
    big = np.zeros((SMALL_SHAPE[0], SMALL_SHAPE[1], 2), dtype=np.uint8)
    big[..., 0] = first
    big.setflags(write=False)
    expected = FlowEstimator(SMALL, SMALL_SHAPE, FlowConfig(method))(first, second)
    found = FlowEstimator(SMALL, SMALL_SHAPE, FlowConfig(method))(big[..., 0], second)
    np.testing.assert_array_equal(found.flow, expected.flow)


def test_auto_is_dis_on_the_cpu_and_torch_on_a_gpu():
    assert FlowConfig().method == "auto"
    assert FlowEstimator(SMALL, SMALL_SHAPE).method == "dis"
    assert FlowConfig().method_on("cpu") == "dis"
    assert FlowConfig().method_on("cuda") == FlowConfig().method_on("cuda:1") == "dis_torch"


@given(
    height=st.integers(32, 2000),
    width=st.integers(32, 2000),
    stride=st.integers(1, 8),
    patches=st.integers(1, 10**5),
)
def test_patches_lie_further_apart_in_a_large_image(height, width, stride, patches):
    config = DisConfig(patch_stride=stride, patches=patches)
    found = config.for_image((height, width))
    assert found.for_image((height, width)) == found
    assert replace(found, patch_stride=stride) == config
    # Never closer than asked for, and with gaps only where that was asked for.
    assert found.patch_stride in (stride, *range(stride, config.patch_size))
    if stride < found.patch_stride:  # no further apart than it takes
        closer = found.patch_stride - 1
        assert height * width / closer**2 > patches
    if found.patch_stride < config.patch_size - 1:
        assert height * width / (found.patch_stride + 0.5) ** 2 <= patches


@pytest.mark.parametrize("method", ["dis", pytest.param("dis_torch", marks=NEEDS_TORCH)])
def test_a_wide_camera_has_the_stride_of_its_view(method):
    grid = CanonicalGrid().covering(WIDE, WIDE_SHAPE)
    pair = rotated_pair("wide")

    def found(**fields):
        config = FlowConfig(method, dis=DisConfig(**fields))
        return FlowEstimator(WIDE, WIDE_SHAPE, config, grid)(*pair).flow

    as_shipped = found()
    np.testing.assert_array_equal(as_shipped, found(patch_stride=7, patches=10**9))
    assert not np.array_equal(as_shipped, found(patches=10**9))


BAD_CONFIGS = [
    (FlowConfig, {"method": "raft"}, "one of auto, dis, farneback, dis_torch, farneback_torch"),
    (FlowConfig, {"pixels_per_cell": 0}, "pixels_per_cell must .* at least 1, got 0"),
    (FlowConfig, {"pixels_per_cell": 2.5}, "pixels_per_cell must be a whole number"),
    (FlowConfig, {"margin_cells": -1}, "margin_cells must .* at least 0, got -1"),
    (DisConfig, {"finest_scale": -1}, "finest_scale must"),
    (DisConfig, {"patch_stride": 9}, "patch_stride 9 leaves gaps"),
    (DisConfig, {"refinements": True}, "refinements must be a whole number"),
    (FarnebackConfig, {"pyramid_scale": 1.0}, "pyramid_scale must be between 0 and 1, got 1.0"),
    (FarnebackConfig, {"window": 14}, "window must be odd, got 14"),
    (FarnebackConfig, {"poly_sigma": 0.0}, "poly_sigma must be positive, got 0.0"),
    (FarnebackConfig, {"iterations": 0}, "iterations must .* at least 1, got 0"),
]


@pytest.mark.parametrize(("config", "fields", "message"), BAD_CONFIGS)
def test_a_bad_configuration_says_why(config, fields, message):
    with pytest.raises(ValueError, match=message):
        config(**fields)


def test_a_bad_image_says_what_was_expected():
    estimator, image = FlowEstimator(SMALL, SMALL_SHAPE), rotated_pair("small")[0]
    with pytest.raises(ValueError, match=r"shape \(180, 620\), got uint8 of shape \(179, 620\)"):
        estimator(image[:-1], image)
    with pytest.raises(ValueError, match=r"grey uint8 image .* got float32"):
        estimator(image, image.astype(np.float32))
    with pytest.raises(ValueError, match=r"got uint8 of shape \(180, 620, 3\)"):
        estimator(np.dstack([image] * 3), image)


def test_bad_flow_says_what_was_expected():
    torch, flow_torch = with_torch()
    view = CanonicalView(SMALL, SMALL_SHAPE)
    device_flow = flow_torch.DeviceFlow(view)
    bad = np.zeros((2, 180, 620), dtype=np.float32)
    with pytest.raises(ValueError, match=r"expected flow of shape \(180, 620, 2\), got \(2, 180"):
        view.camera_flow_to_grid(bad)
    with pytest.raises(ValueError, match=r"expected canonical flow of shape .* got \(2, 180"):
        view.to_grid(bad)
    for method in (device_flow.to_grid, device_flow.camera_flow_to_grid, device_flow.image):
        with pytest.raises(ValueError, match=r"expected .* got \(1, 3, 4\)"):
            method(torch.zeros(1, 3, 4))


def test_a_camera_that_looks_elsewhere_is_refused():
    with pytest.raises(ValueError, match="sees too little of the canonical grid"):
        FlowEstimator(Camera(700.0, 700.0, 5000.0, 200.0), (400, 1000))
    with pytest.raises(ValueError, match=r"9000.*1000x20 pixels sees too little .* pixels"):
        FlowEstimator(Camera(9000.0, 9000.0, 500.0, 10.0), (20, 1000))


def test_opencvs_methods_stay_on_the_cpu():
    for method in ("dis", "farneback"):
        with pytest.raises(ValueError, match=f"{method} runs on the CPU only.*use device 'cpu'"):
            FlowEstimator(SMALL, SMALL_SHAPE, FlowConfig(method), device="cuda")


@NEEDS_TORCH
@pytest.mark.parametrize("device", ["cuda:77", "warp-drive"])
def test_a_device_that_is_not_there_says_what_to_do(device):
    with pytest.raises(HydraNetError, match=f"device.*{device}") as caught:
        FlowEstimator(SMALL, SMALL_SHAPE, device=device)
    assert "\n" not in str(caught.value)


def test_without_torch_the_torch_method_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "hydranet_ros.gyro.flow_torch", raising=False)
    monkeypatch.delattr(hydranet_ros.gyro, "flow_torch", raising=False)
    with pytest.raises(HydraNetError, match="needs PyTorch: pip install torch"):
        FlowEstimator(SMALL, SMALL_SHAPE, FlowConfig("farneback_torch"))
    assert FlowEstimator(SMALL, SMALL_SHAPE)(*rotated_pair("small")).mask.mean() > 0.4


def test_flow_does_without_torch():
    code = "import sys, hydranet_ros.gyro.flow; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- a street ------------------------------------------------------------------------------------


def street_errors(config, estimator):
    street = Street(config)
    errors = []
    for k in (4, 12, 19):
        truth = street.flow(k, k + 1)
        seen = estimator.view.image(truth.visible.astype(np.float32))
        seen = estimator.view.to_grid(np.dstack([seen, seen])).flow[0] * 288.0
        expected = estimator.view.camera_flow_to_grid(truth.vectors).flow
        found = estimator(street.render(k).left, street.render(k + 1).left)
        errors.append(distances(found.flow, expected)[found.mask & (seen > 0.99)])
    return np.concatenate(errors)


def test_dis_on_a_street_with_exact_flow():
    config = StreetConfig(frames=22)
    estimator = FlowEstimator(config.stereo.left, (config.height, config.width))
    errors = street_errors(config, estimator)
    assert np.median(errors) < 0.3
    assert np.percentile(errors, 75) < 1.0


# --- real images ---------------------------------------------------------------------------------


def test_real_flow_runs_along_the_true_epipolar_lines(data):
    """Of a still scene the flow's part across these lines is error, whatever the depth."""
    folder = data / "kitti" / "sequences" / "09"
    if not (folder / "calib.txt").is_file():
        pytest.skip(f"no KITTI sequence 09 at {folder}")
    camera = read_kitti_calibration(folder / "calib.txt").left
    estimator = FlowEstimator(camera, KITTI_SHAPE)
    T_w_c = np.loadtxt(data / "kitti" / "poses" / "09.txt").reshape(-1, 3, 4)
    medians = []
    for k in range(40, 600, 80):
        found = estimator(kitti_image(folder, k), kitti_image(folder, k + 1))
        C = T_w_c[k + 1, :, :3].T @ T_w_c[k, :, :3]
        t = T_w_c[k + 1, :, :3].T @ (T_w_c[k, :, 3] - T_w_c[k + 1, :, 3])
        one = np.ones((*GRID.centres.shape[:-1], 1))
        lines = np.cross(t, np.concatenate([GRID.centres, one], axis=-1) @ C.T)
        ends = np.concatenate([GRID.centres + np.moveaxis(found.flow, 0, -1), one], axis=-1)
        across = np.sum(lines * ends, axis=-1) / np.linalg.norm(lines[..., :2], axis=-1)
        medians.append(np.median(np.abs(across[found.mask])) * camera.fx)
    assert np.mean(medians) < 0.9  # pixels of the camera; the flow is some 20 of them
