"""The benchmark against the five-point method measures what it says."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import ROOT

from hydranet_ros.datasets.source import SimulatedStreet
from hydranet_ros.geometry import lie


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    name = "gyro_against_five_point"
    spec = spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_five_point_finds_rotations_of_the_street(benchmark: ModuleType) -> None:
    source = SimulatedStreet(4)
    method = benchmark.FivePoint(source.camera.left)
    found = [method.update(frame.left) for frame in source]
    assert found[0] is None
    T = lie.se3_inverse(source.T_w_c[1:]) @ source.T_w_c[:-1]
    errors = lie.so3_log(np.array(found[1:]) @ lie.so3_inverse(T[:, :3, :3]))
    assert np.degrees(np.linalg.norm(errors, axis=1)).max() < 0.1
    assert method.update(np.zeros_like(next(iter(source)).left)) is None  # nothing to track


def test_the_imu_turns_the_camera(benchmark: ModuleType, tmp_path: Path) -> None:
    """Three seconds of standing with a bias, then a turn to the left, and pitch."""
    rate, bias = np.radians([0.0, 2.0, 20.0]), np.array([0.01, -0.02, 0.03])
    t = np.arange(0.0, 5.0, 0.01)
    rates = bias + rate * (t > 3.5)[:, None]
    np.savetxt(tmp_path / "imu.csv", np.column_stack([t, rates]), delimiter=",", fmt="%.9f")
    stamps = np.array([4_000_000_000, 4_103_000_000, 6_000_000_000])
    truth = benchmark.imu_reference(tmp_path, stamps)
    assert truth.stamps_ns.tolist() == stamps[:2].tolist()  # the last one is after the IMU's end
    C_2_1 = truth.T_w_c[1, :3, :3].T @ truth.T_w_c[0, :3, :3]
    turned = benchmark._base_turns(C_2_1[None])[0]
    np.testing.assert_allclose(turned, np.degrees(rate) * 0.103, atol=1e-3)
    ahead = benchmark.mounting() @ [0.0, 0.0, 1.0]  # where the camera looks, in the base
    np.testing.assert_allclose(
        ahead, [np.cos(0.36), 0.021 * np.cos(0.36), -np.sin(0.36)], atol=3e-4
    )


def test_one_scale_for_all_but_outliers(benchmark: ModuleType) -> None:
    expected = np.linspace(-3.0, 3.0, 41)
    values = expected / 0.93
    values[::10] = 7.0
    assert benchmark._best_scale(values, expected) == pytest.approx(0.93)
    assert benchmark._best_scale(np.zeros(3), np.ones(3)) == 1.0


def test_both_methods_in_one_run(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main(["street", "--max-frames", "12", "--json"])
    found = json.loads(capsys.readouterr().out)["street"]
    assert (found["frames"], found["without"]) == (12, [0, 0])
    assert (found["over_1"]["blocks"], found["over_10"]["blocks"]) == (11, 1)
    assert found["over_50"]["mean_deg"] == [None, None]
    assert max(found["over_1"]["mean_deg"]) < 0.1
    ours, theirs = found["over_10"]["mean_deg"]
    assert found["ratio_over_10"] == pytest.approx(ours / theirs)
    assert min(found["ms"]) > 0.0
    lines = benchmark.table({"street": found}).splitlines()
    assert [line.count("|") for line in lines] == [10, 10, 10, 10]
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["nowhere"])
    assert ended.value.code == 2
    assert "nowhere: is not a folder" in capsys.readouterr().err
