"""The acts of the demonstration: what is wrong in them, and how they are judged. Without ROS."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="no rosbags here: pip install rosbags")
pytest.importorskip("matplotlib", reason="no matplotlib here: pip install matplotlib")

from hydranet_ros.cli import demo_acts
from hydranet_ros.cli.demo import _verdict
from hydranet_ros.cli.demo_acts import ACTS, BLANK_S, DARK_S, Dimmed
from hydranet_ros.datasets.bag_messages import STORE, odometry
from hydranet_ros.errors import HydraNetError
from hydranet_ros.evaluation.acts import BIAS, WHEELS, Outcome, bias_found, heading
from hydranet_ros.evaluation.recorded import FUSED, RecordedRun
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import T_BASE_OPTICAL, Camera, Frame

STEP_NS = 100_000_000


class Turning:
    """A source that turns to the right at 20 deg/s between 6 s and 12 s, with grey images."""

    name, unmatched = "turning", 0
    camera = Camera(100.0, 100.0, 32.0, 24.0)

    def __init__(self, frames: int = 160) -> None:
        self.stamps_ns = np.arange(frames, dtype=np.int64) * STEP_NS
        seconds = self.stamps_ns * 1e-9
        self.heading = np.radians(20.0) * np.clip(seconds - 6.0, 0.0, 6.0)
        self.T_w_c = np.tile(np.eye(4), (frames, 1, 1))
        self.T_w_c[:, :3, :3] = lie.so3_exp(np.outer(self.heading, [0.0, 1.0, 0.0]))
        self.T_w_c[:, 2, 3] = seconds

    def __len__(self) -> int:
        return len(self.stamps_ns)

    def __iter__(self) -> Any:
        image = np.random.default_rng(0).integers(0, 255, (48, 64), dtype=np.uint8)
        for stamp in self.stamps_ns.tolist():
            yield Frame(stamp, image, image)


def test_it_is_dark_and_blank_where_the_drive_turns() -> None:
    contrast = {round(f.stamp_ns * 1e-9, 1): float(f.left.std()) for f in Dimmed(Turning())}
    bright = contrast[0.0]
    dim = [second for second, each in contrast.items() if each < 0.2 * bright]
    assert min(dim) < 7.0
    assert max(dim) > 11.0
    assert max(dim) - min(dim) == pytest.approx(DARK_S + BLANK_S, abs=0.6)
    for second in (0.5, 2.0, 15.5):
        assert contrast[second] == bright
    means = {round(f.stamp_ns * 1e-9, 1): float(f.left.mean()) for f in Dimmed(Turning())}
    assert (
        means[round(min(dim) + 1.0, 1)] < 30.0 < 90.0 < means[round(max(dim) - 0.5, 1)]
    )  # a tunnel, then a wall


def test_a_drive_that_is_too_short_is_refused() -> None:
    with pytest.raises(HydraNetError, match=r"too short for this act: it takes 11\.5 s"):
        Dimmed(Turning(80))


def test_without_truth_there_is_no_act() -> None:
    source = Turning()
    source.T_w_c = None  # type: ignore[assignment]
    with pytest.raises(HydraNetError, match="use --poses FILE"):
        ACTS[0].open(source, 1)


def test_wheels_do_not_fly() -> None:
    source = Turning()
    assert ACTS[0].open(source, 1) is source
    rolled = lie.so3_exp(np.outer(np.linspace(-0.4, 0.4, len(source)), [0.0, 0.0, 1.0]))
    source.T_w_c[:, :3, :3] = source.T_w_c[:, :3, :3] @ rolled
    with pytest.raises(HydraNetError, match="as nothing on wheels does"):
        ACTS[0].open(source, 1)


def said(source: Turning, scale: float) -> dict[int, Any]:
    """Odometry whose turns are wrong by a scale."""
    found = {}
    for stamp, T, angle in zip(source.stamps_ns, source.T_w_c, source.heading, strict=True):
        T = T.copy()
        T[:3, :3] = lie.so3_exp(np.array([0.0, scale * angle, 0.0]))
        T_w_b = T_BASE_OPTICAL @ T @ lie.se3_inverse(T_BASE_OPTICAL)
        found[int(stamp)] = odometry(int(stamp), "odom", "base_link", T_w_b, np.zeros(6))
    return found


def test_the_heading_does_not_ask_how_the_world_lies() -> None:
    source = Turning()
    run = RecordedRun({WHEELS: said(source, 1.05), FUSED: said(source, 1.01)}, {})
    source.T_w_c = lie.se3_exp([3.0, 1.0, 2.0, 1.2, -0.7, 0.4]) @ source.T_w_c  # z up, say
    assert heading(run, source, 5.0).times == pytest.approx(5.0, rel=1e-3)


@pytest.mark.parametrize(("fused", "passed"), [(1.002, True), (1.02, False)])
def test_the_heading_is_held_to_five_times(fused: float, passed: bool) -> None:
    source = Turning()
    run = RecordedRun({WHEELS: said(source, 1.05), FUSED: said(source, fused)}, {})
    outcome = heading(run, source, 5.0)
    assert outcome.times == pytest.approx(0.05 / (fused - 1.0), rel=1e-3)
    assert outcome.passed is passed
    assert outcome.alone == pytest.approx(0.05 * np.degrees(source.heading).mean(), rel=1e-3)


def bias_message(rates: np.ndarray) -> Any:
    """A TwistWithCovarianceStamped, as it is read from a bag."""
    types = STORE.types
    zero = types["geometry_msgs/msg/Vector3"](0.0, 0.0, 0.0)
    twist = types["geometry_msgs/msg/Twist"](zero, types["geometry_msgs/msg/Vector3"](*rates))
    whole = types["geometry_msgs/msg/TwistWithCovariance"](twist, 1e-6 * np.eye(6).ravel())
    stamp = types["builtin_interfaces/msg/Time"](0, 0)
    header = types["std_msgs/msg/Header"](stamp, "camera")
    return types["geometry_msgs/msg/TwistWithCovarianceStamped"](header, whole)


@pytest.mark.parametrize(("error", "passed"), [(0.04, True), (0.06, False)])
def test_the_bias_is_held_to_its_bound(error: float, passed: bool) -> None:
    true = np.array([1.0, 1.0, 1.0])
    messages = {
        i * STEP_NS: bias_message(np.radians(true + np.array([0.0, error, 0.0]))) for i in range(5)
    }
    outcome = bias_found(RecordedRun({BIAS: messages}, {}), Turning(), 0.05, true)
    assert outcome.fused == pytest.approx(error)
    assert outcome.passed is passed


def test_the_table_says_alone_fused_times_and_the_bound(tmp_path: Any) -> None:
    outcomes = {
        1: Outcome("heading", "deg", "wheels alone", 4.0, 0.5, 5.0, "at least 5", True, None),
        2: Outcome("rotation", "deg", "motion prior", 9.0, 1.0, 10.0, "at least 10", False, None),
    }
    page = SimpleNamespace(url="http://127.0.0.1:8080")
    lines = _verdict(outcomes, tmp_path, "report.html", page).splitlines()  # type: ignore[arg-type]
    assert lines[1].split() == ["act", "alone", "|", "fused", "|", "times", "better", "|", "bound"]
    assert " ".join(lines[2].split()) == "1 4 deg | 0.5 deg | 8 | at least 5 PASS"
    assert lines[3].split()[-1] == "FAIL"
    assert str(tmp_path / "report.html") in lines[4]
    assert "recorded_N" in lines[5]
    assert "http://127.0.0.1:8080" in lines[6]
    assert len(lines) <= 10


def test_the_robot_gets_about_in_the_world_of_every_seed() -> None:
    for seed in (1, 2, 3):
        T = ACTS[0].world(seed).T_w_c
        assert T is not None
        angle = np.unwrap(np.arctan2(T[:, 0, 2], T[:, 2, 2]))
        assert np.ptp(angle) >= demo_acts.TURNED_RAD
        assert np.linalg.norm(np.diff(T[:, :3, 3], axis=0), axis=1).sum() >= demo_acts.WAY_M
