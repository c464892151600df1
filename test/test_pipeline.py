"""The pipeline: its parts and their rules, frame by frame, and the record of a run of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch", reason="rotations from images need torch")

from hydranet_ros import pipeline as pipelines
from hydranet_ros.datasets.source import SimulatedStreet
from hydranet_ros.evaluation.run import FusedPath, RunResults
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.fusion import Fusion
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame
from hydranet_ros.geometry.estimates import RelativePose, RelativeRotation
from hydranet_ros.gyro.predictor import Predictor
from hydranet_ros.gyro.visual_gyro import GyroConfig, VisualGyro, open_predictor
from hydranet_ros.pipeline import Pipeline, PipelineConfig, Step
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.stereo_vo.result import Lost

FRAMES = 14
SECOND = 10**9


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return open_predictor(GyroConfig(device="cpu"))


@pytest.fixture(scope="module")
def street() -> SimulatedStreet:
    return SimulatedStreet(FRAMES)


@pytest.fixture(scope="module")
def frames(street: SimulatedStreet) -> list[Frame]:
    return list(street)


def follow(
    street: SimulatedStreet,
    frames: Iterable[Frame],
    predictor: Predictor,
    config: PipelineConfig | None = None,
) -> tuple[list[Step], RunResults]:
    pipeline = Pipeline(street.camera, config, predictor)
    results = RunResults(street, pipeline)
    steps = []
    for frame in frames:
        steps.append(pipeline.update(frame))
        results.add(steps[-1], 1.0)
    return steps, results


def from_start(street: SimulatedStreet) -> np.ndarray:
    assert street.T_w_c is not None
    return lie.se3_inverse(street.T_w_c[0]) @ street.T_w_c


def test_a_step_is_what_the_parts_give(
    street: SimulatedStreet, frames: list[Frame], predictor: Predictor
) -> None:
    steps, results = follow(street, frames, predictor)
    vo, gyro = StereoVO(street.camera), VisualGyro(street.camera, None, predictor)
    fusion = Fusion(FusionConfig(odometry="own"))
    for frame, step in zip(frames, steps, strict=True):
        motion, rotation = vo.update(frame).pose, gyro.update(frame)
        assert step.stamp_ns == frame.stamp_ns
        if frame is frames[0]:
            assert (motion, rotation, step.vo.pose, step.rotation, step.fused) == (None,) * 5
            assert step.vo.lost is Lost.INITIALISING
            continue
        (state,) = fusion.add(motion, rotation)
        np.testing.assert_allclose(step.vo.pose.T_2_1, motion.T_2_1, atol=1e-12)
        np.testing.assert_allclose(step.rotation.Sigma_2_1, rotation.Sigma_2_1, atol=1e-15)
        np.testing.assert_allclose(step.fused.T_w_c, state.T_w_c, atol=1e-12)
        assert step.fused.stamp_ns == frame.stamp_ns
        assert set(step.fused.nis) <= {"odometry", "rotation"}
    truth = from_start(street)
    for name in ("vo", "fused"):
        assert np.abs(results.trajectories()[name] - truth)[:, :3, 3].max() < 0.1
    assert results.figures()["fused"]["nees"] > 0.0


@pytest.mark.parametrize("bad", [1, 6])
def test_a_lost_frame_is_bridged_and_no_state_relies_on_it(
    street: SimulatedStreet, frames: list[Frame], predictor: Predictor, bad: int
) -> None:
    black = replace(
        frames[bad], left=np.zeros_like(frames[0].left), right=np.zeros_like(frames[0].left)
    )
    steps, results = follow(street, [*frames[:bad], black, *frames[bad + 1 :]], predictor)
    lost, after = steps[bad].vo, steps[bad + 1].vo
    assert (lost.lost, lost.pose, lost.bridged) == (Lost.FLAT_IMAGE, None, True)
    assert (after.stamp_1_ns, after.lost) == (frames[bad - 1].stamp_ns, None)
    assert results.figures()["lost"] == 1
    assert all(step.fused is not None for step in steps[bad + 1 :])
    # There is no rotation to a black image; the next one spans it.
    assert steps[bad].rotation is None
    assert steps[bad + 1].rotation.stamp_1_ns == frames[bad - 1].stamp_ns
    # The odometry's path goes through the lost frame: the later motion spans it.
    errors = np.abs(results.trajectories()["vo"] - from_start(street))[:, :3, 3].max(axis=1)
    assert errors.max() < 0.15
    fused = np.abs(results.trajectories()["fused"] - from_start(street))[:, :3, 3].max(axis=1)
    assert np.delete(fused, bad).max() < 0.15


def test_over_a_gap_all_parts_start_again_and_the_trajectory_goes_on(
    street: SimulatedStreet, frames: list[Frame], predictor: Predictor
) -> None:
    gap = 6
    late = [
        frame if i < gap else replace(frame, stamp_ns=frame.stamp_ns + 2 * SECOND)
        for i, frame in enumerate(frames)
    ]
    steps, results = follow(street, late, predictor)
    assert steps[gap].vo.lost is Lost.LONG_GAP
    assert steps[gap].rotation is None
    assert steps[gap].fused is None
    # The first measurement after a gap may wait for the next one to confirm its stamp.
    assert all(step.fused is not None for step in (*steps[1:gap], *steps[gap + 2 :]))
    poses = results.trajectories()["fused"]
    assert len(poses) == FRAMES
    # Over the gap the last velocity is carried on, for as long as the fusion's max_gap_s.
    before, over = (poses[k, 2, 3] - poses[k - 1, 2, 3] for k in (gap - 1, gap))
    assert over == pytest.approx(20.0 * before, rel=0.3)
    # From there each motion is as before the gap.
    found = lie.se3_inverse(poses[gap + 3 :]) @ poses[gap + 2 : -1]
    truth = from_start(street)
    true = lie.se3_inverse(truth[gap + 3 :]) @ truth[gap + 2 : -1]
    assert np.abs(found - true)[:, :3, 3].max() < 0.05
    # What is known of no motion is left out of the figures.
    figures = results.figures()
    assert figures["lost"] == 1
    assert figures["rotation"]["mean_deg"] < 0.06
    assert figures["fused"]["nees"] < 12.0
    assert len(results.rotations) == FRAMES - 2


def test_one_camera_gives_rotations_alone(
    street: SimulatedStreet, frames: list[Frame], predictor: Predictor
) -> None:
    config = PipelineConfig(parts="rotation")
    pair, _ = follow(street, frames[:4], predictor, config)
    mono = Pipeline(street.camera.left, config, predictor)
    for frame, step in zip(frames[:4], pair, strict=True):
        found = mono.update(Frame(frame.stamp_ns, frame.left))
        assert (found.vo, found.fused) == (None, None)
        if step.rotation is None:
            assert found.rotation is None
        else:
            np.testing.assert_array_equal(found.rotation.C_2_1, step.rotation.C_2_1)
    with pytest.raises(ValueError, match="stereo odometry needs a pair of cameras"):
        Pipeline(street.camera.left, PipelineConfig(), predictor)


def test_odometry_alone_needs_no_network(street: SimulatedStreet, frames: list[Frame]) -> None:
    pipeline = Pipeline(street.camera, PipelineConfig(parts="vo"))
    steps = [pipeline.update(frame) for frame in frames[:3]]
    assert [step.vo.ok for step in steps] == [False, True, True]
    assert all(step.rotation is None and step.fused is None for step in steps)


# --- with recorded wheels ------------------------------------------------------------------------

MS = 1_000_000
START = 10 * SECOND  # of the images, which come at 10 Hz
XI = np.array([0.0, 0.0, -1.0, 0.0, 0.3, 0.0])  # per second


class TrueGyro:
    """It knows how the camera turns."""

    lost = None

    def __init__(self, *_: object) -> None:
        self._last: int | None = None

    def update(self, frame: Frame) -> RelativeRotation | None:
        last, self._last = self._last, frame.stamp_ns
        if last is None:
            return None
        C = lie.so3_exp(XI[3:] * (frame.stamp_ns - last) * 1e-9)
        return RelativeRotation(C, np.eye(3) * 3e-4**2, last, frame.stamp_ns)


def beside_wheels(
    monkeypatch: pytest.MonkeyPatch, begin_ms: int, end_ms: int, frame_s: float = 0.0
) -> FusedPath:
    """2 s of images, and wheels of this time from the first on; a frame takes so long."""
    now = [0.0]
    monkeypatch.setattr(pipelines, "VisualGyro", TrueGyro)
    monkeypatch.setattr(pipelines, "Fusion", partial(Fusion, clock=lambda: now[0]))
    Sigma = np.diag([1e-3**2] * 3 + [2e-4**2] * 3)
    motions = [
        RelativePose(lie.se3_exp(XI * 0.02), Sigma, START + i * MS, START + (i + 20) * MS)
        for i in range(begin_ms, end_ms, 20)
    ]
    config = PipelineConfig(fusion=FusionConfig(odometry="wheels"))
    pipeline = Pipeline(Camera(300.0, 300.0, 160.0, 120.0), config, odometry=motions)
    assert pipeline.fusion is not None
    path = FusedPath(pipeline.fusion)
    for i in range(21):
        stamp = START + i * 100 * MS
        path.add(stamp, pipeline.update(Frame(stamp, np.zeros((4, 4), np.uint8))).states)
        now[0] += frame_s
    assert pipeline.warnings == {}
    return path


@pytest.mark.parametrize("span_ms", [(0, 800), (800, 2400)], ids=["end before", "begin after"])
def test_how_long_a_frame_takes_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, span_ms: tuple[int, int]
) -> None:
    """Where wheels are missing, the camera alone says how it turned."""
    fast, slow = (beside_wheels(monkeypatch, *span_ms, frame_s) for frame_s in (0.0, 0.3))
    assert [s.stamp_ns for s in fast.states] == [s.stamp_ns for s in slow.states]
    np.testing.assert_array_equal(fast.T_w_c, slow.T_w_c)
    turned = lie.so3_exp(XI[3:] * 2.0) @ fast.T_w_c[-1][:3, :3]
    assert np.linalg.norm(lie.so3_log(turned)) < np.deg2rad(0.5)


@pytest.mark.parametrize("begin_ms", [-5000, -30, -10])
def test_what_wheels_say_before_the_first_image_does_not_move_the_start(
    monkeypatch: pytest.MonkeyPatch, begin_ms: int
) -> None:
    path = beside_wheels(monkeypatch, begin_ms, 2400)
    assert min(state.stamp_ns for state in path.states) > START
    true = lie.se3_exp(-XI * np.arange(21)[:, None] * 0.1)
    np.testing.assert_allclose(path.T_w_c, true, atol=2e-3)
