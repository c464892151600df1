"""Recordings: what is read, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hydranet_ros.datasets.recording import PERIOD_NS, read_recording
from hydranet_ros.errors import FileError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation

N = 6


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    T = lie.se3_exp(rng.normal(size=(N, 6)))
    return {
        "T_w_c_vo": T,
        "Sigma_21_vo": np.tile(np.diag([1e-4] * 3 + [1e-6] * 3), (N - 1, 1, 1)),
        "C_21_hn": lie.so3_exp(rng.normal(size=(N - 1, 3))),
        "Sigma_21_hn": np.tile(np.eye(3) * 1e-6, (N - 1, 1, 1)),
        "T_w_c_gt_official": np.tile(np.eye(4), (N, 1, 1)),
        "T_w_c_gt_oxts": T,
    }


def saved(folder: Path, content: dict[str, np.ndarray]) -> Path:
    np.savez(folder / "drive.npz", **content)
    return folder / "drive.npz"


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    content = arrays()
    recording = read_recording(saved(tmp_path, content))
    np.testing.assert_allclose(recording.T_w_c_vo, content["T_w_c_vo"], atol=1e-12)
    np.testing.assert_allclose(recording.C_hn, content["C_21_hn"], atol=1e-12)
    np.testing.assert_array_equal(recording.stamps_ns, np.arange(N) * PERIOD_NS)
    # the truth of the published figures comes before the official one
    np.testing.assert_allclose(recording.T_w_c_gt, content["T_w_c_gt_oxts"], atol=1e-12)
    T_2_1 = np.linalg.inv(content["T_w_c_vo"][2]) @ content["T_w_c_vo"][1]
    np.testing.assert_allclose(recording.T_vo[1], T_2_1, atol=1e-12)


def test_the_truth_may_be_the_official_or_none(tmp_path: Path) -> None:
    content = arrays()
    del content["T_w_c_gt_oxts"]
    recording = read_recording(saved(tmp_path, content))
    np.testing.assert_array_equal(recording.T_w_c_gt, content.pop("T_w_c_gt_official"))
    assert read_recording(saved(tmp_path, content)).T_w_c_gt is None


def test_stamps_and_steps(tmp_path: Path) -> None:
    stamps = np.array([5, 7, 20, 21, 30, 50]) * 10**7
    recording = read_recording(saved(tmp_path, arrays() | {"stamps_ns": stamps}))
    missing = np.array([False, True, False, False, False])
    steps = list(recording.steps(missing, with_rotations=True))
    assert [stamp for stamp, _ in steps] == stamps[1:].tolist()
    kinds = [[type(m) for m in measured] for _, measured in steps]
    assert kinds[1] == [RelativeRotation]
    assert kinds[0] == kinds[2] == [RelativePose, RelativeRotation]
    first = steps[0][1][0]
    assert (first.stamp_1_ns, first.stamp_2_ns) == (50_000_000, 70_000_000)
    without = list(recording.steps(missing, with_rotations=False))
    assert [len(measured) for _, measured in without] == [1, 0, 1, 1, 1]


def test_variants_name_their_sources(tmp_path: Path) -> None:
    content = arrays()
    for key in ("T_w_c_vo", "Sigma_21_vo", "C_21_hn", "Sigma_21_hn"):
        content[f"{key}_blur"] = content[key][::-1]
    content["C_21_hn_nc"] = np.tile(np.eye(3), (N - 1, 1, 1))
    content["Sigma_21_hn_nc"] = 2.0 * content["Sigma_21_hn"]
    path = saved(tmp_path, content)
    blur, other = read_recording(path, "blur"), read_recording(path, "nc")
    np.testing.assert_allclose(blur.T_w_c_vo, content["T_w_c_vo"][::-1], atol=1e-12)
    np.testing.assert_allclose(blur.C_hn, content["C_21_hn"][::-1], atol=1e-12)
    np.testing.assert_allclose(other.T_w_c_vo, content["T_w_c_vo"], atol=1e-12)
    np.testing.assert_allclose(other.C_hn, content["C_21_hn_nc"], atol=1e-12)
    np.testing.assert_allclose(other.Sigma_hn, content["Sigma_21_hn_nc"])


def with_element(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array[2, 0, 0] = value
    return array


@pytest.mark.parametrize(
    ("change", "variant", "why"),
    [
        ({"T_w_c_vo": None}, "", "has no array 'T_w_c_vo': not a recording"),
        ({"Sigma_21_vo": None}, "", "has no array 'Sigma_21_vo'"),
        ({}, "blur", "has no array 'T_w_c_vo_blur'"),
        ({}, "nc", "has no array 'C_21_hn_nc' of variant 'nc'"),
        ({"Sigma_21_hn": None}, "", "Sigma_21_hn"),
        ({"T_w_c_vo": np.eye(4)[None]}, "", "single pose"),
        ({"T_w_c_vo": with_element(arrays()["T_w_c_vo"], np.nan)}, "", "not finite"),
        ({"T_w_c_vo": np.zeros((N, 3))}, "", "T_w_c_vo"),
        ({"C_21_hn": np.eye(3)[None]}, "", "expected shape (5, 3, 3), got (1, 3, 3)"),
        ({"C_21_hn": with_element(arrays()["C_21_hn"], np.nan)}, "", "row 2 is not finite"),
        ({"C_21_hn": with_element(arrays()["C_21_hn"], 3.0)}, "", "row 2 is not a rotation"),
        ({"C_21_hn": -arrays()["C_21_hn"]}, "", "row 0 is not a rotation"),
        ({"Sigma_21_hn": -arrays()["Sigma_21_hn"]}, "", "Sigma_21_hn"),
        ({"Sigma_21_vo": arrays()["Sigma_21_vo"][:3]}, "", "Sigma_21_vo"),
        ({"Sigma_21_vo": with_element(arrays()["Sigma_21_vo"], np.nan)}, "", "Sigma_21_vo"),
        ({"T_w_c_gt_oxts": arrays()["T_w_c_vo"][:4]}, "", "has 4 poses, VO has 6"),
        ({"stamps_ns": np.arange(N)[::-1]}, "", "6 increasing integers"),
        ({"stamps_ns": np.arange(N) * 0.1}, "", "of type float64, not of whole numbers"),
        ({"stamps_ns": np.arange(3)}, "", "stamps_ns: expected shape (6,), got (3,)"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(
    tmp_path: Path, change: dict[str, np.ndarray | None], variant: str, why: str
) -> None:
    content = {k: v for k, v in (arrays() | change).items() if v is not None}
    with pytest.raises(FileError) as refused:
        read_recording(saved(tmp_path, content), variant)
    assert why in str(refused.value)
    assert "drive.npz" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_are_no_archives(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("not an archive")
    for name in ("text.npz", "absent.npz"):
        with pytest.raises(FileError, match=name):
            read_recording(tmp_path / name)


def test_the_real_ones(recordings: Path) -> None:
    for variant in ("", "blur", "nc"):
        assert read_recording(recordings / "kitti_05.npz", variant).C_hn is not None
    assert read_recording(recordings / "kitti_06.npz").C_hn is None
