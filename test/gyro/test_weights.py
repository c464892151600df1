"""Weights survive a round trip, and files that are not weights are refused in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hydranet_ros.errors import FileError
from hydranet_ros.gyro.config import Calibration, preset
from hydranet_ros.gyro.network import HydraNet
from hydranet_ros.gyro.weights import Weights, load_weights, save_weights
from hydranet_ros.gyro.weights_file import FORMAT_VERSION, Provenance

CALIBRATION = Calibration((1.5, 1.0, 2.0), 0.7, (1e-4, -2e-4, 0.0))
PROVENANCE = Provenance("dis", "hydranet train --seed 3", "street", 3, {"nll": -14.5})


@pytest.fixture(scope="module")
def weights() -> Weights:
    torch.manual_seed(0)
    return Weights(HydraNet(preset("default", heads=3)), CALIBRATION, PROVENANCE)


@pytest.fixture
def path(tmp_path, weights) -> Path:
    save_weights(tmp_path / "net.safetensors", weights)
    return tmp_path / "net.safetensors"


def parts(path: Path) -> tuple[dict[str, torch.Tensor], dict]:
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["hydranet"])
    return load_file(path), description


def write(path: Path, tensors: dict[str, torch.Tensor], description: object) -> None:
    save_file(tensors, path, {"hydranet": json.dumps(description)})


def refused(path: Path) -> str:
    with pytest.raises(FileError) as caught:
        load_weights(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message


@pytest.mark.parametrize("name", ["default", "mlp"])
def test_round_trip(tmp_path, name):
    torch.manual_seed(1)
    model = HydraNet(preset(name, heads=3)).eval()
    save_weights(tmp_path / "w", Weights(model, CALIBRATION, PROVENANCE))
    found = load_weights(tmp_path / "w")
    assert found.calibration == CALIBRATION
    assert found.provenance == PROVENANCE
    assert found.model.config == model.config
    assert not found.model.training
    assert all(parameter.requires_grad for parameter in found.model.parameters())
    x = 0.03 * torch.randn(2, *model.config.input_shape)
    with torch.inference_mode():
        for ours, theirs in zip(found.model(x), model(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0.0, atol=0.0)


def test_the_default_network_takes_at_most_8_mb(tmp_path):
    save_weights(tmp_path / "w", Weights(HydraNet(preset("default"))))
    assert (tmp_path / "w").stat().st_size < 8e6


def test_writing_replaces_the_whole_file_or_nothing(path, weights, monkeypatch):
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileError, match="cannot be written: No space left on device"):
        save_weights(path, weights)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_folder_that_is_not_there(tmp_path, weights):
    with pytest.raises(FileError, match="No such file"):
        save_weights(tmp_path / "absent" / "w", weights)
    assert "No such file" in refused(tmp_path / "w")
    assert "directory" in refused(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 100, -1000])
def test_a_damaged_file(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    assert "fetch it again" in refused(path)


def test_a_pickle_is_not_unpickled(path, weights):
    torch.save(weights.model.state_dict(), path)
    assert "not a safetensors file" in refused(path)


def test_a_file_of_somebody_else(path):
    save_file({"a": torch.zeros(3)}, path)
    assert "no description" in refused(path)
    save_file({"a": torch.zeros(3)}, path, {"hydranet": "{"})
    assert "damaged description" in refused(path)
    save_file({"a": torch.zeros(3)}, path, {"hydranet": "[1]"})
    assert "damaged description" in refused(path)


def test_another_version(path):
    tensors, description = parts(path)
    for version in (FORMAT_VERSION - 1, FORMAT_VERSION + 1):
        write(path, tensors, description | {"format_version": version})
        assert f"version {version}, and this hydranet_ros reads {FORMAT_VERSION}" in refused(path)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("network", {"colour": "red"}, "colour is not known"),
        ("network", {"head": 3}, "head is not known: did you mean heads?"),
        ("network", {"heads": 1}, "heads must be a whole number from 2 to 1024, got 1"),
        ("network", {"heads": "many"}, "heads must be a whole number from 2 to 1024, got 'many'"),
        ("network", {"heads": 10**9}, "heads must be a whole number from 2"),
        ("network", {"heads": True}, "heads must be a whole number from 2"),
        ("network", {"body": "vgg"}, "body must be one of"),
        ("network", {"grid": {"rows": 3}}, "CanonicalGrid lacks cell"),
        ("network", {"grid": {"rows": 48, "columns": 160, "cell": 1e-9}}, "cell must be a number"),
        ("network", {"covariance": "cholesky"}, "covariance 'scaled' and body 'flow' go together"),
        ("network", {"grid": [48, 160]}, "CanonicalGrid must be an object"),
        ("network", {"input_shape": [3, 4096, 4096]}, "input_shape"),
        ("network", {"prior_hidden": 60_000}, "prior_hidden: a layer would have"),
        ("network", {"prior_hidden": 60}, "tensor 'priors.first' has shape"),
        ("network", {"heads": 4}, "shape"),
        ("network", {"features": 72}, "shape"),
        ("network", {"prior_scale_rad": 0.0}, "has tensor 'priors.first'"),
        ("calibration", {"epistemic_scale": -1.0}, "epistemic_scale must be a number from 0.001"),
        ("calibration", {"aleatoric_scale": [1.0, 1e9, 1.0]}, "from 0.001 to 1000"),
        ("calibration", {"bias_rad": [0.0]}, "bias_rad must be a list of 3"),
        ("calibration", {"bias_rad": [0.0, 3.0, 0.0]}, "bias_rad must be a number from -0.01"),
        ("calibration", {"bias_rad": [False, 0.0, 0.0]}, "bias_rad must be a number"),
        ("calibration", {"floor_rad": True}, "floor_rad must be a number"),
        ("calibration", {"bias_rad": [0.0, 0.1, 0.0]}, "bias_rad must be a number from -0.01"),
        ("calibration", {"stereo_correlation": 1.5}, "stereo_correlation must be"),
        ("calibration", {"floor_rad": float("nan")}, "floor_rad must be a number"),
        ("provenance", {"author": "me"}, "author is not known"),
        ("provenance", {"flow_method": "magic"}, "flow_method must be one of"),
        ("provenance", {"validation": {"nll": "low"}}, "validation must be a number"),
    ],
)
def test_a_description_that_does_not_fit(path, section, change, message):
    tensors, description = parts(path)
    description[section] |= change
    write(path, tensors, description)
    assert message in refused(path)


def test_what_was_changed_afterwards_is_refused(path):
    tensors, description = parts(path)
    assert description["network"]["output_scale_rad"] == 0.003
    description["network"]["output_scale_rad"] = 0.09  # possible, and wrong
    write(path, tensors, description)
    assert "was changed after it was made" in refused(path)
    _, description = parts(path)
    description["network"]["output_scale_rad"] = 0.003
    write(path, tensors | {"heads.slope": tensors["heads.slope"] + 1e-3}, description)
    assert "was changed after it was made" in refused(path)
    write(path, tensors, description)
    assert load_weights(path).calibration == CALIBRATION


def test_a_file_without_a_digest_is_refused(path):
    tensors, description = parts(path)
    del description["sha256"]
    write(path, tensors, description)
    assert "was changed after it was made" in refused(path)


def test_a_grid_that_is_not_the_network_s(path):
    tensors, description = parts(path)
    description["network"]["grid"]["cell"] *= 2.0
    write(path, tensors, description)
    assert "was changed after it was made" in refused(path)
    description["network"]["grid"]["rows"] += 8
    write(path, tensors, description)
    assert "input_shape must be 6, rows and columns of the grid" in refused(path)


def test_other_grids_of_the_same_cells_are_taken(path):
    model = load_weights(path).model
    with torch.inference_mode():
        q, root = model(0.01 * torch.ones(1, 6, 48, 160))
    assert q.isfinite().all()
    assert root.isfinite().all()


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 50_000, "[]", "3", "null", '{"format_version": true}', "\x00"],
    ids=["deep list", "deep object", "list", "number", "null", "boolean", "NUL"],
)
def test_descriptions_that_are_none(path, text):
    save_file(load_file(path), path, {"hydranet": text})
    refused(path)


@pytest.mark.parametrize("length", [2**62, 2**40, 90 << 20])
def test_headers_of_absurd_length(path, length):
    data = path.read_bytes()
    path.write_bytes(length.to_bytes(8, "little") + data[8:])
    assert "is not a safetensors file, or is damaged" in refused(path)


def test_sections_and_tensors_that_are_missing_or_too_many(path):
    tensors, description = parts(path)
    write(path, tensors, {k: v for k, v in description.items() if k != "calibration"})
    assert "sections" in refused(path)
    write(path, tensors | {"extra": torch.zeros(1)}, description)
    assert "has tensor 'extra'" in refused(path)
    write(path, {k: v for k, v in tensors.items() if k != "heads.slope"}, description)
    assert "lacks tensor 'heads.slope'" in refused(path)
    write(path, tensors | {"heads.slope": tensors["heads.slope"].half()}, description)
    assert "type float16 instead of float32" in refused(path)
    write(path, tensors | {"heads.slope": tensors["heads.slope"] * torch.nan}, description)
    assert "'heads.slope' is not finite" in refused(path)
