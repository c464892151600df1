"""The Predictor: repeatable, the same one by one as in a batch, and clear about its device."""

from __future__ import annotations

import shutil
import warnings

import numpy as np
import pytest
import torch

from hydranet_ros.errors import HydraNetError
from hydranet_ros.gyro.config import Calibration, preset
from hydranet_ros.gyro.grid import FlowInputs
from hydranet_ros.gyro.network import HydraNet
from hydranet_ros.gyro.prediction import combine, combine_stereo
from hydranet_ros.gyro.predictor import Predictor, Traced, network_input
from hydranet_ros.gyro.weights import Weights, save_weights

ROWS, COLUMNS = 48, 160


def textures(count: int) -> torch.Tensor:
    """(count, 3, ROWS, COLUMNS) structure tensors, positive definite."""
    generator = torch.Generator().manual_seed(0)
    a, b = 10.0 * torch.randn(2, count, 2, ROWS, COLUMNS, generator=generator)
    tensors = torch.stack([a[:, 0], a[:, 1], b[:, 0], b[:, 1]], dim=1)
    x, y = tensors[:, :2], tensors[:, 2:]
    return torch.stack([(x * x).sum(1), (x * y).sum(1), (y * y).sum(1)], dim=1)


@pytest.fixture(scope="module")
def model() -> HydraNet:
    """Untrained, but with batch norms that have seen something."""
    torch.manual_seed(0)
    model = HydraNet(preset("default", heads=8))
    with torch.no_grad():
        for parameter in model.body.evidence.parameters():
            parameter.normal_(0.0, 0.1)
        for _ in range(3):
            x = torch.randn(4, 2, ROWS, COLUMNS) * 0.03
            model(network_input(x, torch.rand(4, ROWS, COLUMNS) < 0.8, 6, textures(4)))
    return model.eval()


@pytest.fixture(scope="module")
def flow() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(0.0, 0.02, size=(4, 2, ROWS, COLUMNS)).astype(np.float32)


@pytest.fixture(scope="module")
def mask() -> np.ndarray:
    return np.random.default_rng(1).random((4, ROWS, COLUMNS)) < 0.8


def assert_same(a, b, rtol: float = 0.0, atol: float = 0.0) -> None:
    for name in ("quaternions", "epistemic", "aleatoric"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol, atol, err_msg=name)


def test_it_is_the_model(model, flow, mask):
    texture = textures(4)
    x = network_input(torch.tensor(flow), torch.tensor(mask), 6, texture)
    with torch.inference_mode():
        expected = combine(model(x))
    found = Predictor(model, device="cpu").predict(flow, mask, None, texture)
    assert_same(found, expected, 1e-3, 1e-6)  # batch norms are folded


@pytest.mark.parametrize("size", [1, 2])
def test_a_trace_says_what_the_model_says_of_every_input(model, flow, mask, size):
    """Also of inputs that it was not made with: blank, masked, wild."""
    predictor = Predictor(model, device="cpu")
    wild = 30.0 * flow
    nothing = np.zeros_like(mask)
    for each, known in ((0.0 * flow, mask), (flow, mask), (wild, mask), (flow, nothing)):
        for _ in range(3):  # torch optimises a trace after it has run a few times
            found = predictor.predict(each[:size], known[:size])
        x = network_input(torch.tensor(each[:size]), torch.tensor(known[:size]), 6)
        with torch.inference_mode():
            expected = combine(predictor.model(x))
        assert_same(found, expected, 1e-12, 1e-15)


def test_it_is_repeatable_and_leaves_the_model_alone(model, flow, mask):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, second = Predictor(model, device="cpu"), Predictor(model, device="cpu")
    assert_same(first.predict(flow, mask), first.predict(flow, mask))
    assert_same(first.predict(flow, mask), second.predict(flow, mask))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_trace_repeats_itself_and_draws_nothing(model, flow, mask):
    predictor = Predictor(model, device="cpu")
    before = torch.get_rng_state()
    first = predictor.predict(flow[:1], mask[:1])
    for _ in range(4):
        assert_same(predictor.predict(flow[:1], mask[:1]), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(Predictor(model, device="cpu").predict(flow[:1], mask[:1]), first)


def test_a_batch_is_a_loop(model, flow, mask):
    predictor = Predictor(model, device="cpu")
    together = predictor.predict(flow, mask)
    for i in range(len(flow)):
        one = predictor.predict(flow[i : i + 1], mask[i : i + 1])
        np.testing.assert_allclose(one.quaternions[0], together.quaternions[i], atol=1e-6)
        np.testing.assert_allclose(one.covariance[0], together.covariance[i], rtol=1e-3, atol=1e-9)
    assert len(predictor.predict(flow[:0], mask[:0])) == 0


def test_numpy_and_torch_of_any_type_are_welcome(model, flow, mask):
    predictor = Predictor(model, device="cpu")
    expected = predictor.predict(flow, mask)
    assert_same(predictor.predict(torch.tensor(flow), torch.tensor(mask)), expected)
    assert_same(predictor.predict(flow.astype(np.float64), mask.astype(np.uint8)), expected)
    frozen = flow.copy()
    frozen.setflags(write=False)
    assert_same(predictor.predict(frozen, mask), expected)
    everywhere = np.ones_like(mask)
    assert_same(predictor.predict(flow), predictor.predict(flow, everywhere))


def test_what_stands_where_the_mask_is_empty_does_not_matter(model, flow, mask):
    predictor = Predictor(model, device="cpu")
    spoiled = np.where(mask[:, None], flow, np.nan)
    assert_same(predictor.predict(spoiled, mask), predictor.predict(flow, mask))
    assert np.isfinite(predictor.predict(flow, np.zeros_like(mask)).covariance).all()
    with pytest.raises(HydraNetError, match="finite where its mask is valid"):
        predictor.predict(spoiled, np.ones_like(mask))


def test_rotations_from_a_file_with_calibration(model, flow, mask, tmp_path):
    calibration = Calibration((2.0, 2.0, 2.0), 1.0, (0.0, 0.01, 0.0))
    save_weights(tmp_path / "w", Weights(model, calibration))
    predictor = Predictor(tmp_path / "w", device="cpu")
    plain = Predictor(model, device="cpu").predict(flow, mask)
    stamps = [(i, i + 1) for i in range(4)]
    rotations = predictor.rotations(flow, mask, stamps)
    np.testing.assert_allclose(rotations[2].aleatoric, 4.0 * plain.aleatoric[2], rtol=1e-6)
    assert rotations[3].stamp_2_ns == 4
    again = predictor.predict(flow, mask).rotations(stamps)
    np.testing.assert_array_equal(rotations[1].C_2_1, again[1].C_2_1)


def test_stereo_is_two_predictions_combined(model, flow, mask):
    calibration = Calibration(floor_rad=1e-3, stereo_correlation=0.3)
    predictor = Predictor(Weights(model, calibration), device="cpu")
    both = predictor.predict_stereo(FlowInputs(flow, mask), FlowInputs(flow[::-1]))
    plain = Predictor(model, device="cpu")
    backward = plain.predict(flow[::-1]).inverse()
    expected = combine_stereo(plain.predict(flow, mask), backward, 0.3).widened(1e-3)
    assert_same(both, expected, 1e-3, 1e-6)  # convolutions of another batch size round apart
    one = predictor.predict(flow).aleatoric - plain.predict(flow).aleatoric
    np.testing.assert_allclose(one, np.tile(1e-6 * np.eye(3), (4, 1, 1)), atol=1e-12)


def test_networks_without_a_mask_and_without_flow():
    torch.manual_seed(0)
    paper = HydraNet(preset("paper", heads=2, input_shape=(2, 32, 32)))
    flow = np.random.default_rng(0).normal(size=(2, 2, 32, 32))
    assert Predictor(paper, "cpu").predict(flow).quaternions.shape == (2, 4)
    mlp = HydraNet(preset("mlp", heads=2))
    assert Predictor(mlp, "cpu").predict_inputs(np.zeros((3, 72))).epistemic.shape == (3, 3, 3)


def test_without_a_word_all_that_is_seen_is_trusted(model, flow, mask):
    predictor = Predictor(model, device="cpu")
    expected = predictor.predict(flow, mask)
    assert_same(predictor.predict(flow, mask, np.ones_like(mask)), expected)
    some = np.random.default_rng(2).random(mask.shape) < 0.98
    found = predictor.predict(flow, mask, some)
    assert np.abs(found.quaternions - expected.quaternions).max() > 1e-6
    with pytest.raises(ValueError, match=r"trusted must be \(batch, rows, columns\)"):
        predictor.predict(flow, mask, some[:, 1:])


def test_texture_is_well_without_a_word_and_counts(model, flow, mask):
    predictor = Predictor(model, device="cpu")
    expected = predictor.predict(flow, mask)
    well = np.zeros((4, 3, ROWS, COLUMNS), dtype=np.float32)
    well[:, ::2] = 20.0
    assert_same(predictor.predict(flow, mask, None, well), expected)
    poor = predictor.predict(flow, mask, None, 0.01 * well)
    traces = [np.trace(each.aleatoric, axis1=1, axis2=2) for each in (poor, expected)]
    assert (traces[0] != traces[1]).all()
    spoiled = np.where(mask[:, None], well, np.nan)
    assert_same(predictor.predict(flow, mask, None, spoiled), expected)
    with pytest.raises(ValueError, match=r"texture must be \(batch, 3, rows, columns\)"):
        predictor.predict(flow, mask, None, well[:, :2])


def test_nothing_to_trust_is_no_rotation_with_a_large_covariance(model, flow, mask):
    steady = 0.01 + 0.02 * flow  # a turn, and a little noise
    found = Predictor(model, device="cpu").predict(steady, mask, np.zeros_like(mask))
    some = Predictor(model, device="cpu").predict(steady)
    assert np.isfinite(found.quaternions).all()
    traces = [np.trace(each.aleatoric, axis1=1, axis2=2) for each in (found, some)]
    assert (traces[0] > 10.0 * traces[1]).all()


@pytest.mark.parametrize(
    ("shape", "mask_shape", "message"),
    [
        ((2, 48, 160), None, r"flow must be \(batch, 2, rows, columns\)"),
        ((1, 3, 48, 160), None, "flow must be"),
        ((1, 2, 48, 160), (1, 48, 161), "mask must be"),
        ((1, 2, 47, 160), None, r"got \(1, 6, 47, 160\)"),
    ],
)
def test_wrong_shapes_are_named(model, shape, mask_shape, message):
    mask = None if mask_shape is None else np.ones(mask_shape)
    with pytest.raises(ValueError, match=message):
        Predictor(model, device="cpu").predict(np.zeros(shape), mask)


# --- devices and options


def test_the_device_in_use_is_reported(model):
    predictor = Predictor(model, device="cpu")
    assert predictor.device == torch.device("cpu")
    assert predictor.device_name == f"cpu (torch, {torch.get_num_threads()} threads)"
    assert repr(predictor) == f"Predictor('default' on {predictor.device_name})"
    assert Predictor(model).device.type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_absent_cuda_is_an_error_not_a_fallback(model):
    expected = "device 'cuda' is asked for but torch has no CUDA here: use device 'cpu' or 'auto'"
    with pytest.raises(HydraNetError) as caught:
        Predictor(model, device="cuda")
    assert str(caught.value) == expected


@pytest.mark.parametrize("name", ["gpu", "cpux", ""])
def test_unknown_devices_are_refused(model, name):
    with pytest.raises(HydraNetError, match="device must be auto, numpy, cpu, cuda"):
        Predictor(model, device=name)


def test_the_number_of_threads_is_left_alone(model, flow):
    before = torch.get_num_threads()
    Predictor(model, device="cpu").predict(flow)
    assert torch.get_num_threads() == before


def test_half_precision_stays_close(model, flow, mask):
    half = Predictor(model, device="cpu", half=True).predict(flow, mask)
    full = Predictor(model, device="cpu").predict(flow, mask)
    np.testing.assert_allclose(half.quaternions, full.quaternions, atol=2e-3)
    np.testing.assert_allclose(np.linalg.norm(half.quaternions, axis=1), 1.0)
    np.testing.assert_allclose(half.aleatoric, full.aleatoric, rtol=0.2, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_cuda_agrees_with_the_cpu(model, flow, mask):
    cuda = Predictor(model, device="cuda").predict(flow, mask)
    assert_same(cuda, Predictor(model, device="cpu").predict(flow, mask), 1e-2, 1e-5)


@pytest.mark.slow  # a minute of compiling
@pytest.mark.skipif(not shutil.which("g++"), reason="compiling for the CPU needs g++")
def test_compiled_agrees(model, flow, mask):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        compiled = Predictor(model, device="cpu", compile=True)
        found = compiled.predict(flow, mask)
    assert "compiled" in repr(compiled)
    assert_same(found, Predictor(model, device="cpu").predict(flow, mask), 1e-3, 1e-6)


def test_a_failing_compiler_is_one_line(model, flow, monkeypatch):
    def broken(graph: object, inputs: object) -> None:
        raise OSError("no compiler\nand a long story")

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module: real(module, backend=broken))
    predictor = Predictor(model, device="cpu", compile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(HydraNetError, match=r"^compile is asked for but fails here \(.*\)"):
            predictor.predict(flow)


def test_only_a_few_traces_are_kept():
    """A stream of images of ever other sizes must not fill the memory."""
    traced = Traced(torch.nn.Identity())
    for size in range(1, 12):
        x = torch.ones(1, size)
        torch.testing.assert_close(traced(x), x)
    assert len(traced._traces) <= 4
