"""Files of self-calibrations: written, read back, refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from hydranet_ros.errors import FileError
from hydranet_ros.geometry.camera import Camera, StereoCamera
from hydranet_ros.stereo_vo.calibration import (
    PARAMETERS,
    SIZE,
    Calibration,
    calibration_text,
    read_calibration,
)
from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.odometry import StereoVO

CAMERA = StereoCamera(Camera(700.0, 710.0, 600.0, 180.0), 0.54)


@pytest.fixture
def known() -> Calibration:
    rng = np.random.default_rng(0)
    root = 1e4 * rng.standard_normal((SIZE, 2 * SIZE))
    information = root @ root.T
    return Calibration.prior().updated(
        information, information @ (1e-3 * rng.standard_normal(SIZE))
    )


def test_what_is_written_is_read_back_with_less_information(
    known: Calibration, tmp_path: Path
) -> None:
    path = tmp_path / "calibration.yaml"
    path.write_text(calibration_text(known, CAMERA))
    found = read_calibration(path, CAMERA)
    np.testing.assert_allclose(found.mean, known.mean, atol=1e-5)
    np.testing.assert_allclose(found.measured[0], 0.1 * known.measured[0], rtol=1e-6)
    mean = yaml.safe_load(path.read_text())["mean"]
    np.testing.assert_allclose([mean[name] for name in PARAMETERS], known.mean, rtol=1e-6)


def test_odometry_starts_from_a_file_and_goes_back_to_it(
    known: Calibration, tmp_path: Path
) -> None:
    path = tmp_path / "calibration.yaml"
    path.write_text(calibration_text(known, CAMERA))
    vo = StereoVO(CAMERA, StereoVOConfig(calibration=str(path)))
    np.testing.assert_allclose(vo.calibration.mean, known.mean, atol=1e-5)
    vo.reset()
    np.testing.assert_allclose(vo.calibration.mean, known.mean, atol=1e-5)
    assert np.abs(StereoVO(CAMERA).calibration.mean).max() == 0.0


def test_other_files_are_refused(known: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    text = calibration_text(known, CAMERA)
    other = replace(CAMERA, baseline_m=0.12)
    path.write_text(text)
    with pytest.raises(FileError, match=r"another pair: its baseline_m is 0\.54, not 0\.12"):
        read_calibration(path, other)
    values = yaml.safe_load(text)
    wrong = {
        "no camera": {"camera": None},
        "mean must have": {"mean": {"k": 1.0}},
        "vector must be finite": {"vector": [float("nan")] * SIZE},
        "information must be finite": {"information": [[1.0]]},
        "not symmetric": {"information": np.triu(np.ones((SIZE, SIZE))).tolist()},
        "not positive": {"information": (-1e9 * np.eye(SIZE)).tolist()},
        "another lens": {"vector": [1e12] * SIZE},
    }
    for reason, change in wrong.items():
        path.write_text(yaml.safe_dump({**values, **change}))
        with pytest.raises(FileError, match=reason):
            read_calibration(path, CAMERA)
    with pytest.raises(FileError, match="nowhere"):
        read_calibration(tmp_path / "nowhere.yaml", CAMERA)
