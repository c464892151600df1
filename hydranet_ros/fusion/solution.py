"""What a window tells once it is solved: the newest state, its motion, and what is calibrated."""

from __future__ import annotations

import numpy as np

from hydranet_ros.fusion.edges import FusedState, Rejection
from hydranet_ros.fusion.expectation import Known
from hydranet_ros.fusion.window import Window
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array


def solution(
    window: Window,
    before: Known,
    Sigma_start: Array,
    nis: dict[str, float],
    rejected: tuple[Rejection, ...],
) -> tuple[FusedState, Known]:
    """The newest state of a window, and its covariances; `before` is of the solution before.

    `Sigma_start` is of the pose that the window began with.
    """
    size = window.dimension
    joint = window.newest_covariance(2)
    newest = joint[-size:, -size:]
    T_2_1 = Sigma_2_1 = step_s = None
    velocity = np.zeros(6)
    if len(window) > 1:
        T_2_1 = window.relative_pose(-2, -1)
        to_relative = np.zeros((6, 2 * size))
        to_relative[:, :6] = -lie.se3_adjoint(T_2_1)
        to_relative[:, size : size + 6] = np.eye(6)
        Sigma_2_1 = to_relative @ joint @ to_relative.T
        Sigma_2_1 = 0.5 * (Sigma_2_1 + Sigma_2_1.T)
        step_s = float(window.stamps[-1] - window.stamps[-2]) * 1e-9
        velocity = -lie.se3_log(T_2_1) / step_s
    known = Known(
        newest[:6, :6],
        before.Sigma_2_1 if Sigma_2_1 is None else Sigma_2_1,
        before.step_s if step_s is None else step_s,
        newest[6:9, 6:9] if window.with_bias else before.Sigma_bias,
        newest[9:12, 9:12] if window.with_scales else before.Sigma_scales,
        newest[12:, 12:] if size == 15 else before.Sigma_imu,
        newest[6:, 6:],
    )
    state = FusedState(
        stamp_ns=int(window.stamps[-1]),
        T_w_c=lie.se3_inverse(window.pose(-1)),
        Sigma_c_w=_no_less(newest[:6, :6], Sigma_start),
        T_2_1=T_2_1,
        Sigma_2_1=Sigma_2_1,
        step_s=step_s,
        velocity=velocity,
        bias=window.states.b[-1].copy(),
        Sigma_bias=known.Sigma_bias if window.with_bias else None,
        scales=window.states.s[-1].copy(),
        Sigma_scales=known.Sigma_scales if window.with_scales else None,
        imu_bias=window.states.i[-1].copy(),
        Sigma_imu_bias=known.Sigma_imu if size == 15 else None,
        nis=nis,
        rejected=rejected,
    )
    return state, known


def _no_less(Sigma: Array, Sigma_start: Array) -> Array:
    """Relative motions never make a lost pose known: where they seem to, a turn was too large.

    Large turns of a pose that is not known to a radian leave the reach of linear equations.
    """
    blocks = (slice(0, 3), slice(3, 6))
    least = [float(np.linalg.eigvalsh(Sigma_start[b, b])[0]) for b in blocks]
    if least[1] < 1.0:
        return Sigma
    out = Sigma.copy()
    for block, variance in zip(blocks, least, strict=True):
        missing = variance - float(np.linalg.eigvalsh(out[block, block])[0])
        out[block, block] += max(missing, 0.0) * np.eye(3)
    return out
