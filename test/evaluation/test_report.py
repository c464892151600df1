from __future__ import annotations

import re
import subprocess
import sys
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.output import ResultsFolder
from hydranet_ros.evaluation.record import Consistency, OffsetField, RotationErrors, RunRecord
from hydranet_ros.evaluation.report import write_report
from hydranet_ros.geometry import lie

pytest.importorskip("matplotlib", reason="a report needs matplotlib")

from hydranet_ros.evaluation.plots import chi2_quantile, self_calibration

FRAMES = 60
ALL = {
    "top_down",
    "pose_errors",
    "rotation_hydranet",
    "histogram_hydranet",
    "sigma_hydranet",
    "calibration",
    "nis",
    "self_calibration",
    "timing",
}


def record(title: str = "a <run>") -> RunRecord:
    rng = np.random.default_rng(0)
    stamps = np.arange(FRAMES, dtype=np.int64) * 10**8 + 5 * 10**9
    motion = lie.se3_exp([0.1, 0.0, -0.8, 0.0, 0.02, 0.0])
    truth = np.array([np.linalg.matrix_power(lie.se3_inverse(motion), k) for k in range(FRAMES)])
    noisy = truth @ lie.se3_exp(1e-2 * rng.standard_normal((FRAMES, 6)))
    Sigma = np.tile(np.diag([1e-6, 4e-6, 1e-6]), (FRAMES - 1, 1, 1))
    phi = rng.standard_normal((FRAMES - 1, 3)) * np.sqrt(np.diagonal(Sigma, 0, 1, 2))
    return RunRecord(
        title,
        stamps,
        {"vo": noisy, "fused": truth},
        truth,
        {"hydranet": RotationErrors(stamps[1:], phi, Sigma, 0.2 * Sigma)},
        {"vo": Consistency(stamps[1:], rng.chisquare(6, FRAMES - 1), 6)},
        {"fused": rng.gamma(4.0, 8.0, FRAMES)},
        {"vo": {"ate_m": 1.25, "nees": None}, "fused": {"ate_m": 0.5}},
        ("59 steps & one note",),
        field(1.0),
    )


def field(largest_px: float) -> OffsetField:
    u, v = np.meshgrid(np.linspace(0, 619, 9), np.linspace(0, 187, 5))
    pixels = np.stack([u, v], axis=-1).reshape(-1, 2)
    outward = (pixels - pixels.mean(axis=0)) / 310.0
    return OffsetField(pixels, largest_px * np.hstack([0.5 * outward, outward]))


def test_a_field_is_drawn_in_pixels_and_none_where_nothing_is_off() -> None:
    plot = self_calibration(record())
    assert plot is not None
    titles = [axes.get_title(loc="left") for axes in plot.axes[:2]]
    assert titles == ["left image: up to 0.52 px", "right image: up to 1.04 px"]
    for axes in plot.axes[:2]:
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("u (px)", "v (px)")
        assert axes.get_ylim()[0] > axes.get_ylim()[1]  # rows go down
    assert plot.axes[2].get_ylabel() == "offset (px)"
    assert self_calibration(replace(record(), offsets=field(0.0))) is None
    assert self_calibration(replace(record(), offsets=None)) is None


def test_the_page_holds_every_plot_and_needs_nothing_else(tmp_path: Path) -> None:
    page = write_report(ResultsFolder(tmp_path), record())
    text = page.read_text(encoding="utf-8")
    assert {path.stem for path in (tmp_path / "plots").glob("*.png")} == ALL
    inlined = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    on_disk = {path.read_bytes() for path in (tmp_path / "plots").glob("*.png")}
    assert {b64decode(data) for data in inlined} == on_disk
    assert len(inlined) == len(ALL)
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "<h1>a &lt;run&gt;</h1>" in text
    assert "59 steps &amp; one note" in text
    assert "<td>position, mean error (m)</td><td>1.25</td><td>0.5</td>" in text
    assert '<td class="better">2.5</td>' in text
    assert "<td>NEES</td><td>-</td><td>-</td>" in text
    assert text.index("2.5 times better") < text.index("<img")


def test_plots_show_something(tmp_path: Path) -> None:
    write_report(ResultsFolder(tmp_path), record())
    for path in (tmp_path / "plots").glob("*.png"):
        image = cv2.imread(str(path))
        assert image is not None
        assert len(np.unique(image.reshape(-1, 3), axis=0)) > 20, path
        assert (image != 255).any(axis=2).mean() > 0.01, path


def test_equal_runs_write_equal_bytes(tmp_path: Path) -> None:
    pages = [write_report(ResultsFolder(tmp_path / name), record()) for name in ("a", "b")]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    other = write_report(ResultsFolder(tmp_path / "c"), record("other"))
    assert pages[0].read_bytes() != other.read_bytes()


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    full = record()
    bare = RunRecord("bare", full.stamps_ns, full.trajectories)
    write_report(ResultsFolder(tmp_path), bare)
    assert [path.stem for path in (tmp_path / "plots").iterdir()] == ["top_down"]
    empty = RotationErrors(
        np.zeros(0, dtype=np.int64), np.zeros((0, 3)), np.zeros((0, 3, 3)), np.zeros((0, 3, 3))
    )
    rotations = {"hydranet": empty}
    nothing = RunRecord("bare", full.stamps_ns, full.trajectories, None, rotations)
    write_report(ResultsFolder(tmp_path / "empty"), nothing)
    assert [path.stem for path in (tmp_path / "empty" / "plots").iterdir()] == ["top_down"]


def test_worlds_do_not_matter() -> None:
    full = record()
    turn = lie.se3_exp([3.0, -2.0, 1.0, 0.4, -1.2, 0.3])
    moved = RunRecord("moved", full.stamps_ns, {"fused": turn @ full.trajectories["fused"]})
    np.testing.assert_allclose(moved.from_start()["fused"], full.from_start()["fused"], atol=1e-9)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"T_w_c_gt": np.zeros((3, 4, 4))}, r"T_w_c_gt must have shape \(60, 4, 4\)"),
        ({"trajectories": {"vo": np.full((60, 4, 4), np.nan)}}, "'vo' has elements that are not"),
        ({"latencies_ms": {"vo": np.zeros((2, 2))}}, "latencies 'vo' must have shape"),
    ],
)
def test_records_that_do_not_fit_are_refused(change: dict[str, object], why: str) -> None:
    full = record()
    fields = {"title": "x", "stamps_ns": full.stamps_ns, "trajectories": full.trajectories}
    with pytest.raises(ValueError, match=why):
        RunRecord(**{**fields, **change})  # type: ignore[arg-type]


def test_quantiles_are_those_of_the_chi_square_distribution() -> None:
    """chi2.ppf(0.95, n) as in every table of it."""
    found = [float(chi2_quantile(0.95, n)) for n in (1, 3, 6)]
    np.testing.assert_allclose(found, [3.841459, 7.814728, 12.591587], atol=1e-6)
    assert chi2_quantile(np.array([0.0, 1.0]), 3).tolist() == [0.0, np.inf]


def test_matplotlib_is_loaded_only_for_a_report() -> None:
    code = (
        "import sys, hydranet_ros.evaluation.report, hydranet_ros.cli.__main__; "
        "print('matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_matplotlib_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    remedy = re.escape("the report needs matplotlib: pip install 'hydranet_ros[report]'")
    with pytest.raises(HydraNetError, match=remedy):
        write_report(ResultsFolder(tmp_path), record())
    assert list(tmp_path.iterdir()) == []
