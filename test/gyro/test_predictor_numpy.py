"""The network by NumPy gives what it gives by torch, and reads the same files."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

torch = pytest.importorskip("torch", reason="the oracle is torch")

from hydranet_ros import open_source
from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.gyro import epipolar_numpy
from hydranet_ros.gyro.config import preset
from hydranet_ros.gyro.grid import FlowInputs
from hydranet_ros.gyro.memory import MemoryConfig
from hydranet_ros.gyro.network import HydraNet
from hydranet_ros.gyro.network_numpy import flow_layout
from hydranet_ros.gyro.prediction import Prediction
from hydranet_ros.gyro.predictor import Predictor
from hydranet_ros.gyro.predictor_numpy import NumpyPredictor
from hydranet_ros.gyro.visual_gyro import DEFAULT_WEIGHTS, GyroConfig, VisualGyro, open_predictor
from hydranet_ros.gyro.weights import Weights, layout, save_weights

ROTATION_RAD, ROOT_SHARE = 1e-6, 1e-4
WITH_MEMORY = 0.05  # of a standard deviation, for a frame before which both remember the same
# A rounding decides which points are still believed, and what is remembered drifts apart: in
# standard deviations, of one frame, and rms.
ONE_FRAME, ALL_FRAMES = 0.5, 0.1


@pytest.fixture(scope="module")
def both() -> tuple[Predictor, NumpyPredictor]:
    return Predictor(DEFAULT_WEIGHTS, "cpu", threads=1), NumpyPredictor(DEFAULT_WEIGHTS)


def random_flow(rng: np.random.Generator, shape: tuple[int, int]) -> FlowInputs:
    """Any motion before any depths, with noise, wrong flow, holes and any texture."""
    grid = replace(preset("default").grid, rows=shape[0], columns=shape[1])
    x = np.dstack([grid.centres, np.ones(shape)])
    depth = np.exp(0.5 * gaussian_filter(rng.standard_normal(shape), 6.0) * 20.0)
    direction = rng.standard_normal(3)
    direction /= np.linalg.norm(direction)
    moved = x @ lie.so3_exp(0.03 * rng.standard_normal(3)).T
    moved += rng.uniform(0.0, 0.2) * direction / depth[..., None]
    flow = np.moveaxis(moved[..., :2] / moved[..., 2:] - x[..., :2], 2, 0)
    flow += 3e-4 * rng.standard_normal(flow.shape)
    flow += (rng.random(shape) < 0.1) * rng.uniform(-0.1, 0.1, flow.shape)
    mask = np.ones(shape, dtype=bool)
    mask[: rng.integers(1, shape[0] // 3)] = False
    trusted = mask & (rng.random(shape) < 0.9)
    (a, b), (c, d) = rng.uniform(0.0, 15.0) * rng.standard_normal((2, 2, *shape))
    texture = np.stack([a * a + c * c, a * b + c * d, b * b + d * d])
    return FlowInputs(*(each[None].astype(np.float32) for each in (flow, mask, trusted, texture)))


def differences(found: Prediction, wanted: Prediction) -> np.ndarray:
    """(batch, 2): of the rotations in rad, of the roots of the covariances relative to them."""
    inverse = wanted.quaternions * [1.0, -1.0, -1.0, -1.0]
    apart = lie.quaternion_log(lie.quaternion_multiply(found.quaternions, inverse))
    got, want = (np.linalg.cholesky(each.covariance) for each in (found, wanted))
    roots = np.abs(got - want).max(axis=(1, 2)) / np.abs(want).max(axis=(1, 2))
    return np.stack([np.abs(apart).max(axis=1), roots], axis=1)


def assert_same(found: Prediction, wanted: Prediction) -> None:
    assert (differences(found, wanted) < (ROTATION_RAD, ROOT_SHARE)).all()


SHAPES = [(112, 168), (56, 144), (80, 112), (32, 48)]


def compare_random(both: tuple[Predictor, NumpyPredictor], seeds: range) -> None:
    """Where sigma is above 3 deg nothing is known, and what is said hangs on roundings."""
    rows = []
    for seed in seeds:
        given = random_flow(np.random.default_rng(seed), SHAPES[seed % len(SHAPES)])
        found, wanted = both[1].predict(*given), both[0].predict(*given)
        if np.trace(wanted.covariance[0]) < np.deg2rad(3.0) ** 2:
            rows.append(differences(found, wanted)[0])
    rotations, roots = np.array(rows).T
    assert len(rows) > 0.6 * len(seeds)
    assert rotations.max() < ROTATION_RAD
    assert np.quantile(roots, 0.99) < ROOT_SHARE
    assert roots.max() < 2.0 * ROOT_SHARE


def test_random_flow(both: tuple[Predictor, NumpyPredictor]) -> None:
    compare_random(both, range(24))


@pytest.mark.slow
def test_a_thousand_random_flows(both: tuple[Predictor, NumpyPredictor]) -> None:
    compare_random(both, range(1000, 2000))


def compare_real(both: tuple[Predictor, NumpyPredictor], folder: Path, count: int) -> None:
    """Between two images, and with the memory, whose thresholds make more of what differs."""
    for apart, _ in in_sequence(both, folder, count, MemoryConfig(frames=0)):
        assert np.abs(apart).max() < ROTATION_RAD
    for apart, Sigma in in_sequence(both, folder, count, MemoryConfig(), same_memory=True):
        assert in_sigmas(apart, Sigma) < WITH_MEMORY
    own = in_sequence(both, folder, count, MemoryConfig())
    drifted = [in_sigmas(apart, Sigma) for apart, Sigma in own]
    assert max(drifted) < ONE_FRAME
    assert np.sqrt(np.mean(np.square(drifted))) < ALL_FRAMES


def in_sigmas(apart: np.ndarray, Sigma: np.ndarray) -> float:
    return float(np.sqrt(apart @ np.linalg.solve(Sigma, apart)))


def in_sequence(
    both: tuple[Predictor, NumpyPredictor],
    folder: Path,
    count: int,
    memory: MemoryConfig,
    same_memory: bool = False,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """What gyros with either predictor differ by, and the covariance, frame by frame.

    With `same_memory` both begin every frame with what the first one remembers.
    """
    source = open_source(str(folder), max_frames=count + 1, cameras="mono")
    config = GyroConfig(memory=memory)
    gyros = [VisualGyro(source.camera, config, predictor) for predictor in both]
    compared = []
    for frame in islice(source, count + 1):
        if same_memory:
            gyros[1]._memory = deepcopy(gyros[0]._memory)
        wanted, found = (gyro.update(frame) for gyro in gyros)
        assert (wanted is None) == (found is None)
        if wanted is not None and found is not None:
            apart = lie.so3_log(found.C_2_1 @ wanted.C_2_1.T)
            compared.append((apart, wanted.Sigma_2_1))
    assert len(compared) > count // 2
    return compared


def test_real_images(both: tuple[Predictor, NumpyPredictor], data: Path) -> None:
    compare_real(both, data / "euroc", 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kitti/sequences/09", "euroc", "tum/fr1_xyz"])
def test_many_real_images(both: tuple[Predictor, NumpyPredictor], data: Path, name: str) -> None:
    compare_real(both, data / name, 40)


def test_both_cameras_of_a_pair(both: tuple[Predictor, NumpyPredictor]) -> None:
    left, right = (random_flow(np.random.default_rng(seed), (56, 144)) for seed in (1, 2))
    assert_same(both[1].predict_stereo(left, right), both[0].predict_stereo(left, right))


def test_a_batch_and_what_is_left_out(both: tuple[Predictor, NumpyPredictor]) -> None:
    many = [random_flow(np.random.default_rng(seed), (32, 48)) for seed in range(3)]
    flow = np.concatenate([each.flow for each in many])
    assert_same(both[1].predict(flow), both[0].predict(flow))
    for name, shape in (
        ("mask", (3, 32, 47)),
        ("trusted", (2, 32, 48)),
        ("texture", (3, 2, 32, 48)),
    ):
        with pytest.raises(ValueError, match=name):
            both[1].predict(flow, **{name: np.ones(shape)})


def test_flow_that_is_not_finite_is_refused_in_one_line(
    both: tuple[Predictor, NumpyPredictor],
) -> None:
    flow = np.full((1, 2, 32, 48), np.nan)
    for predictor in both:
        with pytest.raises(HydraNetError, match="sample 0 is not finite"):
            predictor.predict(flow)
    masked = both[1].predict(flow, np.zeros((1, 32, 48)))  # whatever stands there
    assert np.isfinite(masked.covariance).all()


def test_a_file_holds_what_torch_says(tmp_path: Path) -> None:
    for config in (preset("default"), preset("default", heads=3, prior_scale_rad=0.0)):
        assert flow_layout(config) == layout(tmp_path, config)


def test_other_networks_need_torch(tmp_path: Path) -> None:
    path = tmp_path / "paper.safetensors"
    save_weights(path, Weights(HydraNet(preset("mlp"))))
    with pytest.raises(FileError, match="needs torch"):
        NumpyPredictor(path)


def test_which_one_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_predictor(GyroConfig(device="cpu")), Predictor)
    assert isinstance(open_predictor(GyroConfig(device="numpy")), NumpyPredictor)
    with pytest.raises(HydraNetError, match="half needs torch"):
        open_predictor(GyroConfig(device="numpy", half=True))
    installed: set[str] = set()
    monkeypatch.setattr(
        "hydranet_ros.gyro.visual_gyro.find_spec", lambda name: name in installed or None
    )
    chosen = open_predictor()
    assert isinstance(chosen, NumpyPredictor)
    assert "NumPy" in str(chosen)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    installed.add("torch")
    assert isinstance(open_predictor(), Predictor)
    installed.add("numba")
    assert isinstance(open_predictor(), NumpyPredictor)


@pytest.mark.parametrize(("many", "n"), [(64, 128), (3, 1000), (1, 17)])
def test_compiled_sums_are_those_of_numpy(
    many: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    from hydranet_ros.gyro import epipolar_numba

    rng = np.random.default_rng(n)
    (a, b), (c, d) = 10.0 * rng.standard_normal((2, 2, n))
    texture = np.stack([a * a + c * c, a * b + c * d, b * b + d * d])
    points, valid = rng.uniform(-0.6, 0.6, (2, n)), 1.0 * (rng.random(n) < 0.9)
    flow = rng.normal(0.0, 0.05, (2, n))
    cells = epipolar_numpy.Cells(points, points + flow, valid, epipolar_numpy.flow_spread(texture))
    t = rng.standard_normal((many, 3))
    t /= np.linalg.norm(t, axis=1)[:, None]
    motion = epipolar_numpy.CameraMotion(epipolar_numpy.rotate(rng.normal(0.0, 0.1, (many, 3))), t)
    scale = rng.uniform(7e-4, 0.1, (many, 1))
    normal, moment = epipolar_numpy._normal(epipolar_numpy._place(cells, motion), t, valid, scale)
    fields = cells.points, cells.target, cells.spread
    sums = epipolar_numba.sums(*fields, valid, *motion, scale.ravel())
    np.testing.assert_allclose(sums[:, :6, :6], normal, rtol=1e-9, atol=1e-9 * normal.max())
    np.testing.assert_allclose(-sums[:, :6, 6], moment, atol=1e-9 * np.abs(moment).max())
    for held in (0.0, epipolar_numpy.HELD):
        stepped = [epipolar_numpy.step(cells, motion, valid, scale, held)]
        with monkeypatch.context() as without:
            without.setattr(epipolar_numpy, "compiled", None)
            stepped.append(epipolar_numpy.step(cells, motion, valid, scale, held))
        for ours, theirs in zip(*stepped, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-9)
    left = epipolar_numpy.residuals(cells, motion)
    expected = np.log1p(np.square(left.across) / (left.variance * 1e-6)) @ valid
    np.testing.assert_allclose(
        epipolar_numba.costs(*fields, valid, *motion, 1e-3), expected, rtol=1e-9
    )


def test_without_numba_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    predictor = NumpyPredictor(DEFAULT_WEIGHTS)
    given = [random_flow(np.random.default_rng(seed), SHAPES[1]) for seed in range(5)]
    compiled = [predictor.predict(*each) for each in given]
    monkeypatch.setattr(epipolar_numpy, "compiled", None)
    for each, found in zip(given, compiled, strict=True):
        wanted = predictor.predict(*each)
        if np.trace(wanted.covariance[0]) < np.deg2rad(3.0) ** 2:
            assert_same(found, wanted)
