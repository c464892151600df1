"""The networks: shapes, sizes, names, and that many heads are evaluated as one would be."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from safetensors.torch import save_file

from hydranet_ros.errors import FileError
from hydranet_ros.gyro import quaternion
from hydranet_ros.gyro.config import PRESETS, Calibration, NetworkConfig, preset
from hydranet_ros.gyro.grid import CanonicalGrid
from hydranet_ros.gyro.heads import ManyLinear
from hydranet_ros.gyro.network import HydraNet
from hydranet_ros.gyro.paper_bodies import load_imagenet

# What each preset is made of, counted by hand: (inputs + 1) * outputs per linear layer.
CONV = [2, 64, 128, 256, 512, 1024, 1024, 1024]
PAPER_BODY = sum(9 * a * b + b + 2 * b for a, b in pairwise(CONV))
PAPER_BODY += (4096 + 1) * 512
PAPER_HEAD = 513 * 512 + 1 + 513 * 4
PAPER_COVARIANCE = 513 * 256 + 1 + 257 * 3


@pytest.fixture(scope="module")
def resnet() -> HydraNet:
    return HydraNet(preset("resnet34"))


@pytest.mark.parametrize("name", PRESETS)
def test_outputs_are_unit_quaternions_and_a_factor(name):
    torch.manual_seed(0)
    model = HydraNet(preset(name, heads=5)).eval()
    with torch.inference_mode():
        q, root = model(0.1 * torch.rand(2, *model.config.input_shape))
    assert q.shape == (2, 5, 4)
    assert root.shape == (2, 3, 3)
    torch.testing.assert_close(q.norm(dim=-1), torch.ones(2, 5))
    assert (root.diagonal(dim1=1, dim2=2) > 0.0).all()
    assert (root.triu(1) == 0.0).all()


def test_paper_sizes():
    with torch.device("meta"):
        model = HydraNet(preset("paper"))
        later = HydraNet(preset("paper", input_shape=(2, 120, 400)))
    assert model.config.heads == 25
    assert model.parameter_count() == PAPER_BODY + 25 * PAPER_HEAD + PAPER_COVARIANCE
    assert later.parameter_count() == model.parameter_count()  # 4096 positions either way
    assert model.priors is None
    assert model.config.bootstrap == "none"


def test_mlp_sizes():
    model = HydraNet(preset("mlp"))
    head, covariance = 73 * 512 + 1 + 513 * 4, 73 * 256 + 1 + 257 * 3
    assert model.parameter_count() == 5 * 73 * 72 + 25 * head + covariance


def test_default_fits_on_a_robot():
    model = HydraNet(preset("default"))
    assert 0.1e6 < model.parameter_count() < 1.2e6
    stored = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    assert stored < 8e6


def torchvision_names() -> dict[str, tuple[int, ...]]:
    """The state dict of torchvision's resnet34 without fc, from its published structure."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7)}

    def norm(name: str, width: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (width,)
        shapes[f"{name}.num_batches_tracked"] = ()

    norm("bn1", 64)
    before = 64
    for layer, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=1):
        for block in range(count):
            name = f"layer{layer}.{block}"
            shapes[f"{name}.conv1.weight"] = (width, before, 3, 3)
            norm(f"{name}.bn1", width)
            shapes[f"{name}.conv2.weight"] = (width, width, 3, 3)
            norm(f"{name}.bn2", width)
            if before != width:
                shapes[f"{name}.downsample.0.weight"] = (width, before, 1, 1)
                norm(f"{name}.downsample.1", width)
            before = width
    return shapes


def test_resnet_has_torchvision_names_and_shapes(resnet):
    found = {name: tuple(value.shape) for name, value in resnet.body.state_dict().items()}
    assert found == torchvision_names()
    # torchvision states 21 797 672 parameters, 513 000 of them in fc.
    assert sum(p.numel() for p in resnet.body.parameters()) == 21_797_672 - 513_000


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_imagenet_weights_are_loaded(resnet, tmp_path, suffix):
    tensors = {
        name: torch.full(shape, 0.5) if shape else torch.tensor(7)
        for name, shape in torchvision_names().items()
    }
    tensors |= {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    path = tmp_path / f"resnet34{suffix}"
    save_file(tensors, path) if suffix == ".safetensors" else torch.save(tensors, path)
    load_imagenet(resnet.body, path)
    assert all((p == 0.5).all() for p in resnet.body.parameters())
    del tensors["layer3.5.bn2.bias"]
    save_file(tensors, tmp_path / "less.safetensors")
    with pytest.raises(FileError, match=r"less.*lacks 'layer3.5.bn2.bias'"):
        load_imagenet(resnet.body, tmp_path / "less.safetensors")
    tensors["layer3.5.bn2.bias"] = torch.zeros(3)
    save_file(tensors, tmp_path / "wrong.safetensors")
    with pytest.raises(FileError, match=r"shape \(3,\) instead of \(256,\)"):
        load_imagenet(resnet.body, tmp_path / "wrong.safetensors")


@pytest.mark.parametrize("name", ["absent.pth", "absent.safetensors", "text.pth", "code.pth"])
def test_other_files_are_no_imagenet_weights(resnet, tmp_path, name):
    (tmp_path / "text.pth").write_text("not weights")
    torch.save({"conv1.weight": CanonicalGrid()}, tmp_path / "code.pth")  # an object, not a tensor
    with pytest.raises(FileError) as caught:
        load_imagenet(resnet.body, tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_many_linear_is_a_loop_over_linear():
    torch.manual_seed(0)
    layer = ManyLinear(6, 5, 3)
    shared, own = torch.randn(4, 5), torch.randn(4, 6, 5)
    for h in range(6):
        one = torch.nn.functional.linear
        expected = one(shared, layer.weight[h], layer.bias[h])
        torch.testing.assert_close(layer(shared)[:, h], expected)
        torch.testing.assert_close(
            layer(own)[:, h], one(own[:, h], layer.weight[h], layer.bias[h])
        )


def test_heads_drop_out_each_for_itself():
    torch.manual_seed(0)
    model = HydraNet(preset("mlp", heads=3)).train()
    for value in model.heads.parameters():
        with torch.no_grad():
            value.copy_(value[:1].expand_as(value))
    q = model(torch.randn(1, 72)).quaternions[0]
    assert (q[0] - q[1]).norm() > 1e-3
    q = model.eval()(torch.randn(1, 72)).quaternions[0]
    torch.testing.assert_close(q[0], q[1])


@pytest.mark.parametrize("name", ["default", "mlp"])
def test_every_parameter_gets_a_finite_gradient(name):
    torch.manual_seed(0)
    model = HydraNet(preset(name, heads=4))
    q, root = model(0.03 * torch.randn(3, *model.config.input_shape))
    (q[..., 1:].sum() + root.sum()).backward()
    for key, value in model.named_parameters():
        assert value.grad is not None, key
        assert value.grad.isfinite().all(), key


def test_priors_are_fixed_and_belong_to_the_seed():
    first, second = (HydraNet(preset("default")).priors for _ in range(2))
    other = HydraNet(preset("default", prior_seed=1)).priors
    x = 0.03 * torch.randn(2, 6, 48, 160)
    torch.testing.assert_close(first(x), second(x))
    scale = preset("default").prior_scale_rad
    assert (first(x) - other(x)).abs().max() > 3.0 * scale
    assert not list(first.parameters())


def test_priors_have_their_scale_and_grow():
    torch.manual_seed(0)
    model = HydraNet(preset("default", heads=200))
    priors = model.priors
    x = torch.zeros(8, 6, 48, 160)
    x[:, :2] = 0.03 * torch.randn(8, 2, 1, 1)
    near, far = priors(x).std(), priors(10.0 * x).std()
    assert 0.8 < near / model.config.prior_scale_rad < 3.0
    assert far > 5.0 * near


def test_a_wrong_input_is_named():
    with pytest.raises(ValueError, match=r"\(batch, 72\), got \(2, 71\)"):
        HydraNet(preset("mlp"))(torch.zeros(2, 71))
    with pytest.raises(ValueError, match=r"\(batch, 6, 112, 168\), got \(2, 6, 112, 164\)"):
        HydraNet(preset("default"))(torch.zeros(2, 6, 112, 164))


@pytest.mark.parametrize("shape", [(8, 8), (48, 160), (112, 168), (160, 232)])
def test_the_default_takes_any_grid_in_eights(shape):
    torch.manual_seed(0)
    model = HydraNet(preset("default", heads=3)).eval()
    with torch.inference_mode():
        q, root = model(0.03 * torch.randn(2, 6, *shape))
    torch.testing.assert_close(q.norm(dim=-1), torch.ones(2, 3))
    assert (root.diagonal(dim1=1, dim2=2) > 0.0).all()
    assert (root.triu(1) == 0.0).all()


def test_a_scaled_covariance_is_what_its_docstring_says():
    torch.manual_seed(0)
    head = HydraNet(preset("default", heads=2)).covariance
    quality = torch.randn(4, head.layers[0].in_features)
    R = 1e-3 * torch.randn(4, 3, 3).tril()
    root = head.scale(quality, R)
    z = head.layers(quality)
    s = torch.nn.functional.softplus(z[:, 0]) + head.floor
    a = head.unit_rad * torch.nn.functional.softplus(z[:, 1])
    expected = s[:, None, None] ** 2 * R @ R.mT + a[:, None, None] ** 2 * torch.eye(3)
    torch.testing.assert_close(root @ root.mT, expected, rtol=1e-4, atol=1e-12)
    assert torch.equal(root, root.tril())
    with pytest.raises(ValueError, match="needs a root"):
        head(quality)


def test_a_scaled_covariance_survives_what_is_ambiguous():
    """Known to 1e-5 rad about two axes and to 0.12 rad about the third, whichever that is."""
    torch.manual_seed(0)
    head = HydraNet(preset("default", heads=2)).covariance
    with torch.no_grad():
        head.layers[2].bias[1] = -20.0  # nothing is added
    axes = quaternion.to_matrix(torch.nn.functional.normalize(torch.randn(500, 4).double(), dim=1))
    sizes = torch.tensor([0.12, 1e-5, 1e-5], dtype=torch.float64)
    R = torch.linalg.cholesky(axes @ torch.diag(sizes**2) @ axes.mT).float()
    root = head.scale(torch.zeros(500, head.layers[0].in_features), R)
    assert root.isfinite().all()
    assert (root.diagonal(dim1=1, dim2=2) > 0.0).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 1}, "heads must be a whole number from 2 to 1024, got 1"),
        ({"body": "vgg"}, "one of flow, paper"),
        ({"body": "resnet34", "features": 64}, "features of body resnet34 must be 512"),
        ({"covariance": "full"}, "diagonal, cholesky"),
        ({"head_dropout": 1.0}, "head_dropout"),
        ({"input_shape": (6, 112, 169)}, "6, rows and columns of the grid"),
        ({"input_shape": (3, 112, 168)}, "6, rows and columns of the grid"),
        ({"grid": CanonicalGrid(60, 160), "input_shape": (6, 60, 160)}, "in eights"),
        ({"covariance": "diagonal"}, "'scaled' and body 'flow' go together"),
        ({"body": "paper", "input_shape": (2, 64, 64)}, "'scaled' and body 'flow' go together"),
        ({"prior_scale_rad": -1.0}, "prior_scale_rad"),
        ({"sigma_unit_rad": 0.0}, "sigma_unit_rad"),
        ({"body": "mlp"}, "input_shape"),
    ],
)
def test_impossible_configurations_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        NetworkConfig(**wrong)


def test_impossible_parts_are_refused():
    with pytest.raises(ValueError, match="one of default, paper"):
        preset("huge")
    with pytest.raises(ValueError, match=r"epistemic_scale must be a number from 0\.001"):
        Calibration(epistemic_scale=-1.0)
    with pytest.raises(ValueError, match=r"bias_rad must be a number from -0\.01"):
        Calibration(bias_rad=(0.0, float("nan"), 0.0))
