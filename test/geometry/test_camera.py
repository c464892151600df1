from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import SHAPES

from hydranet_ros.datasets.kitti import read_kitti_calibration
from hydranet_ros.errors import FileError
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.gyro.grid import CanonicalGrid

# Unlike any real one in fx != fy, so that the two cannot be mixed up.
CAMERA = Camera(fx=700.0, fy=650.0, cx=600.0, cy=180.0)
STEREO = StereoCamera(CAMERA, baseline_m=0.54)


@st.composite
def points(draw):
    """(*batch, 3) in view: 1 to 80 m away."""
    shape = draw(st.sampled_from(SHAPES))
    size = int(np.prod(shape))
    slope = st.floats(-1.0, 1.0, width=32)
    rows = st.lists(st.tuples(slope, slope, st.floats(1.0, 80.0)), min_size=size, max_size=size)
    slopes_and_depth = np.array(draw(rows)).reshape(*shape, 3)
    depth = slopes_and_depth[..., 2:]
    return np.concatenate([slopes_and_depth[..., :2] * depth, depth], axis=-1)


def central_differences(function, at, step):
    """d function / d at, (..., 3) -> (..., 3, 3), with its columns from +- step."""
    steps = step * np.eye(3)
    columns = function(at[..., None, :] + steps) - function(at[..., None, :] - steps)
    return np.swapaxes(columns / (2.0 * step), -1, -2)


# --- geometry ------------------------------------------------------------------------------------


@given(points())
def test_projection_is_that_of_the_intrinsic_matrix(p):
    k = np.array([[700.0, 0.0, 600.0], [0.0, 650.0, 180.0], [0.0, 0.0, 1.0]])
    left = (k @ p[..., None])[..., 0]
    right = (k @ (p - (0.54, 0.0, 0.0))[..., None])[..., 0]
    y = STEREO.project(p)
    np.testing.assert_allclose(y[..., :2], left[..., :2] / left[..., 2:], rtol=0, atol=1e-11)
    np.testing.assert_allclose(y[..., 2], right[..., 0] / right[..., 2], rtol=0, atol=1e-11)
    np.testing.assert_array_equal(CAMERA.project(p), y[..., :2])


@given(points())
def test_normalise_undoes_project(p):
    normalised = CAMERA.normalise(CAMERA.project(p))
    np.testing.assert_allclose(normalised, p[..., :2] / p[..., 2:], rtol=0, atol=1e-14)


@given(points())
def test_triangulation_undoes_projection(p):
    # A disparity of 5 px between columns near 1300 px keeps 13 digits.
    back = STEREO.triangulate(STEREO.project(p))
    np.testing.assert_allclose(back, p, rtol=1e-12, atol=1e-10)


@given(points())
def test_project_jacobian_of_one_camera_matches_central_differences(p):
    numeric = central_differences(CAMERA.project, p, 1e-5)
    np.testing.assert_allclose(CAMERA.project_jacobian(p), numeric, rtol=1e-6, atol=1e-6)


@given(points())
def test_project_jacobian_matches_central_differences(p):
    numeric = central_differences(STEREO.project, p, 1e-5)
    # Up to 700 px per metre; truncation 1e-7 at a depth of 1 m, rounding 1e-8.
    np.testing.assert_allclose(STEREO.project_jacobian(p), numeric, rtol=1e-6, atol=1e-6)


@given(points())
def test_triangulate_jacobian_matches_central_differences(p):
    y = STEREO.project(p)
    numeric = central_differences(STEREO.triangulate, y, 1e-4)
    # Up to 17 m per pixel; truncation (1e-4 / 5 px)^2, relative.
    np.testing.assert_allclose(STEREO.triangulate_jacobian(y), numeric, rtol=1e-7, atol=1e-7)


@given(points())
def test_jacobians_are_each_others_inverse(p):
    product = STEREO.project_jacobian(p) @ STEREO.triangulate_jacobian(STEREO.project(p))
    np.testing.assert_allclose(
        product, np.broadcast_to(np.eye(3), product.shape), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("p", [(0.5, -0.3, 4.0), (-3.0, 1.0, 10.0), (6.0, 2.0, 20.0)], ids=str)
def test_triangulation_covariance_against_monte_carlo(p):
    n, pixel_covariance = 20_000, np.diag([0.04, 0.09, 0.04])
    pixel_covariance[0, 2] = pixel_covariance[2, 0] = 0.01
    y = STEREO.project(p)
    jacobian = STEREO.triangulate_jacobian(y)
    sigma = jacobian @ pixel_covariance @ jacobian.T
    noise = np.random.default_rng(0).multivariate_normal(np.zeros(3), pixel_covariance, size=n)
    white = np.linalg.solve(np.linalg.cholesky(sigma), (STEREO.triangulate(y + noise) - p).T)
    # 1.4 % expected from the sample size; 1 % from the curvature of 1 / disparity at 20 m.
    assert np.linalg.norm(white @ white.T / n - np.eye(3)) / np.sqrt(3.0) < 0.04


@pytest.mark.parametrize("name", ["fx", "fy", "cx", "cy"])
def test_intrinsics_must_be_finite(name):
    fields = {"fx": 1.0, "fy": 1.0, "cx": 0.0, "cy": 0.0, name: float("nan")}
    with pytest.raises(ValueError, match=f"must be finite.*{name}=nan"):
        Camera(**fields)


@pytest.mark.parametrize(("fx", "fy"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, -1.0)])
def test_focal_lengths_must_be_positive(fx, fy):
    with pytest.raises(ValueError, match="focal lengths must be positive"):
        Camera(fx, fy, 0.0, 0.0)


@pytest.mark.parametrize("baseline", [0.0, -0.5, float("nan"), float("inf")])
def test_the_baseline_must_be_positive(baseline):
    with pytest.raises(ValueError, match="baseline must be positive"):
        StereoCamera(CAMERA, baseline)


# --- KITTI calib.txt -----------------------------------------------------------------------------

K = np.array([[700.0, 0.0, 600.0], [0.0, 650.0, 180.0], [0.0, 0.0, 1.0]])


def line(name, offset, k=K):
    """`name`: K [I | offset], row by row."""
    numbers = np.column_stack([k, k @ np.asarray(offset)]).ravel()
    return f"{name}: " + " ".join(f"{x:.12e}" for x in numbers)


LEFT, RIGHT = line("P0", (0.0, 0.0, 0.0)), line("P1", (-0.54, 0.0, 0.0))


def written(folder, *lines):
    path = folder / "calib.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_reads_the_real_calibration_of_kitti_09(data):
    path = data / "kitti" / "sequences" / "09" / "calib.txt"
    if not path.is_file():
        pytest.skip(f"no KITTI sequence 09 at {path.parent}")
    grey = read_kitti_calibration(path)
    assert grey.left == Camera(fx=707.0912, fy=707.0912, cx=601.8873, cy=183.1104)
    assert grey.baseline_m == pytest.approx(379.8145 / 707.0912, rel=1e-12)
    colour = read_kitti_calibration(path, "P2", "P3")
    assert colour.left == grey.left
    offsets = np.linalg.solve(
        [[707.0912, 0, 601.8873], [0, 707.0912, 183.1104], [0, 0, 1]],
        [[46.88783, -333.4597], [0.1178601, 1.930130], [0.006203223, 0.003318498]],
    )
    assert colour.baseline_m == pytest.approx(offsets[0, 0] - offsets[0, 1], rel=1e-12)


def test_reads_any_pair_among_other_lines(tmp_path):
    path = written(
        tmp_path,
        "calib_time: 09-Jan-2012 13:57:47",
        line("P3", (-0.47, 0.0, 0.003)),
        "",
        LEFT,
        line("P2", (0.06, 0.0, 0.006)),
        RIGHT,
        "Tr: 1 2 3",
    )
    grey, colour = read_kitti_calibration(path), read_kitti_calibration(str(path), "P2", "P3")
    assert grey.left == colour.left == CAMERA
    assert grey.baseline_m == pytest.approx(0.54, rel=1e-11)
    assert colour.baseline_m == pytest.approx(0.53, rel=1e-11)


def other_k(row, column, number):
    k = K.copy()
    k[row, column] = number
    return k


WITHOUT_LAST = LEFT.rsplit(" ", 1)[0]
BAD_FILES = {
    "missing P1": ([LEFT], ": has no line 'P1:'"),
    "empty": ([], ": has no line 'P0:'"),
    "one number less": (["", WITHOUT_LAST, RIGHT], ":2: P0 must have 12 numbers, got 11"),
    "one number more": ([LEFT, RIGHT + " 1"], ":2: P1 must have 12 numbers, got 13"),
    "no numbers": (["P0:", RIGHT], ":1: P0 must have 12 numbers, got 0"),
    "nan": ([LEFT, "", "P1:" + " nan" * 12], ":3: P1 has numbers that are not finite"),
    "infinity": (["P0:" + " inf" * 12, RIGHT], ":1: P0 has numbers that are not finite"),
    "not a number": ([LEFT, "P1: 1 2 three"], ":2: P1: .*'three'"),
    "swapped": ([line("P0", (-0.54, 0, 0)), line("P1", (0, 0, 0))], ": .*-0.54 m: .*swapped"),
    "no baseline": ([LEFT, line("P1", (0, 0, 0))], ": P0 and P1 give a baseline of 0 m"),
    "not rectified": ([LEFT, line("P1", (-0.54, 0, 0), 1.01 * K)], ": .*not a rectified pair"),
    **{
        f"focal length {name}": (
            [line("P0", (0, 0, 0), k), line("P1", (-0.54, 0, 0), k)],
            ": P0 has focal lengths .*: not a calibrated camera",
        )
        for name, k in [("fx", other_k(0, 0, 0.0)), ("fy", other_k(1, 1, -650.0))]
    },
    **{
        f"not a pinhole, {name}": (
            [line("P0", (0, 0, 0), k), line("P1", (-0.54, 0, 0), k)],
            ": P0 is not .*pinhole",
        )
        for name, k in [
            ("skew", other_k(0, 1, 5.0)),
            ("scale", other_k(2, 2, 2.0)),
            ("columns first", K.T.copy()),
        ]
    },
}


@pytest.mark.parametrize(("lines", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_calibration_says_where_and_why(tmp_path, lines, message):
    with pytest.raises(FileError, match=f"calib.txt{message}") as caught:
        read_kitti_calibration(written(tmp_path, *lines))
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_an_unreadable_calibration_says_why(tmp_path):
    with pytest.raises(FileError, match=r"nowhere\.txt: cannot be read: No such file"):
        read_kitti_calibration(tmp_path / "nowhere.txt")
    with pytest.raises(FileError, match="cannot be read: Is a directory"):
        read_kitti_calibration(tmp_path)
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe\x00")
    with pytest.raises(FileError, match=r"binary\.txt: is not a text file"):
        read_kitti_calibration(binary)


# --- the canonical grid --------------------------------------------------------------------------

GRID = CanonicalGrid()
KITTI_CAMERAS = [
    pytest.param(Camera(718.856, 718.856, 607.1928, 185.2157), (376, 1241), id="00"),
    pytest.param(Camera(707.0912, 707.0912, 601.8873, 183.1104), (370, 1226), id="09"),
]


def test_the_grid_is_centred_on_the_optical_axis():
    centres = CanonicalGrid(rows=2, columns=3, cell=0.1).centres
    assert centres.shape == (2, 3, 2)
    np.testing.assert_allclose(centres[..., 0], [[-0.1, 0.0, 0.1]] * 2, rtol=0, atol=1e-15)
    np.testing.assert_allclose(centres[..., 1], [[-0.05] * 3, [0.05] * 3], rtol=0, atol=1e-15)


@given(st.integers(1, 9), st.integers(1, 9), st.floats(1e-3, 1.0), st.integers(1, 5))
def test_a_cell_is_the_mean_of_its_pixels(rows, columns, cell, k):
    grid = CanonicalGrid(rows, columns, cell)
    u, v = np.meshgrid(np.arange(columns * k), np.arange(rows * k))
    points = grid.camera(k).normalise(np.stack([u, v], axis=-1))
    means = points.reshape(rows, k, columns, k, 2).mean(axis=(1, 3))
    np.testing.assert_allclose(means, grid.centres, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("camera", "shape"), KITTI_CAMERAS)
def test_a_covering_grid_holds_all_that_a_camera_sees(camera, shape):
    grid = GRID.covering(camera, shape)
    assert grid.rows % 8 == 0
    assert grid.columns % 8 == 0
    seen = grid.seen_by(camera, shape)
    wider = CanonicalGrid(grid.rows + 16, grid.columns + 16).seen_by(camera, shape)
    assert seen.sum() == wider.sum()  # nothing more is to be seen beyond it
    smaller = CanonicalGrid(grid.rows - 8, grid.columns).seen_by(camera, shape)
    assert smaller.sum() < seen.sum()


@given(
    st.floats(50.0, 2000.0),
    st.floats(50.0, 2000.0),
    st.floats(0.2, 0.8),
    st.floats(0.2, 0.8),
    st.integers(40, 1000),
    st.integers(40, 1000),
)
def test_a_seen_cell_has_all_its_corners_in_the_image(fx, fy, x, y, height, width):
    camera = Camera(fx, fy, x * width, y * height)
    seen = GRID.seen_by(camera, (height, width))
    steps = 0.5 * GRID.cell * np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)])
    corners = GRID.centres[..., None, :] + steps
    pixels = camera.project(np.concatenate([corners, np.ones((*corners.shape[:-1], 1))], axis=-1))
    outside = np.maximum(-0.5 - pixels, pixels - (width - 0.5, height - 0.5)).max(axis=(-2, -1))
    certain = np.abs(outside) > 1e-5
    np.testing.assert_array_equal(seen[certain], outside[certain] < 0.0)


def test_an_image_of_exactly_the_grid_is_seen_whole():
    for k in (1, 3, 4, 7):
        shape = (GRID.rows * k, GRID.columns * k)
        assert GRID.seen_by(GRID.camera(k), shape).all()
        less = GRID.seen_by(GRID.camera(k), (shape[0], shape[1] - 1))
        assert less[:, :-1].all()
        assert not less[:, -1].any()


@pytest.mark.parametrize("fields", [{"rows": 0}, {"columns": 0}, {"cell": 0.0}, {"cell": np.nan}])
def test_a_grid_needs_cells(fields):
    with pytest.raises(ValueError, match="got"):
        CanonicalGrid(**fields)
    with pytest.raises(ValueError, match="at least one pixel, got 0"):
        GRID.camera(0)
