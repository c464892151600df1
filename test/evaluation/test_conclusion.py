"""What a report says first is what its figures say."""

from __future__ import annotations

import numpy as np
import pytest

from hydranet_ros.evaluation.conclusion import conclusion, gains, judged
from hydranet_ros.evaluation.record import RotationErrors, RunRecord

STAMPS = np.arange(3, dtype=np.int64)


def record(figures: dict, **others: object) -> RunRecord:
    return RunRecord("run", STAMPS, {}, figures=figures, **others)


def test_the_most_telling_figure_is_told() -> None:
    figures = {
        "wheels": {"ate_deg": 15.2, "ate_m": 10.0, "seg_pct": None},
        "fused": {"ate_deg": 1.9, "ate_m": 8.0, "seg_pct": 1.0},
    }
    assert conclusion(record(figures)) == (
        "Fused, orientation is off by 1.9 deg, with wheels alone 15.2: 8 times better."
    )
    found = gains(figures)
    assert list(found) == ["ate_deg", "ate_m"]
    assert found["ate_m"].times == pytest.approx(1.25)


def test_a_loss_is_told_too() -> None:
    figures = {"vo": {"ate_m": 1.0, "ate_deg": 1.0}, "fused": {"ate_m": 2.0, "ate_deg": 0.5}}
    assert conclusion(record(figures)).endswith("with stereo odometry alone 1: 2 times worse.")


@pytest.mark.parametrize(
    ("times", "words"),
    [(1.02, "the same"), (0.98, "the same"), (1.2, "1.2 times better"), (0.5, "2 times worse")],
)
def test_words_for_a_ratio(times: float, words: str) -> None:
    assert judged(times) == words


def test_without_a_fusion_or_a_truth() -> None:
    assert conclusion(record({"vo": {"ate_m": 1.5}})) == (
        "With stereo odometry, position is off by 1.5 m."
    )
    phi = np.deg2rad([[0.3, 0.0, 0.4]])
    errors = RotationErrors(STAMPS[1:2], phi, np.eye(3)[None] * np.deg2rad(0.5) ** 2, None)
    assert conclusion(record({}, rotations={"gyro": errors})) == (
        "Rotations of gyro are off by 0.5 deg from frame to frame, and their NEES is 1 (ideal 3)."
    )
    assert "truth is not known" in conclusion(record({}))
