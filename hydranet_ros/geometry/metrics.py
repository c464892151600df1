"""How far an estimated trajectory is from the true one, and how honest its covariances are.

Two definitions of the segment error are in use and give different numbers. Both cut the true path
into segments of 100, 200, ... 800 m, which end at the first frame strictly beyond the length:

- the paper's: segments start at every frame; the mean over the lengths of the mean per length;
- the KITTI devkit's: segments start at every tenth frame; the mean over all segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import compose_with_covariance
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.odometer import chain

SEGMENT_LENGTHS_M = np.arange(100.0, 801.0, 100.0)
DEVKIT_STRIDE = 10
LEAST_SPREAD_M = 0.01  # of positions about their mean, for a scale to be found

Alignment = Literal["none", "first", "SE3", "Sim3"]
ALIGNMENTS: tuple[Alignment, ...] = get_args(Alignment)


@dataclass(frozen=True)
class TrajectoryErrors:
    """The figures of one evaluation; None where the data cannot give one.

    ate_m, ate_deg                    mean over poses of |trans| and angle of inv(T_est) T_gt
    seg_pct, seg_deg_per_100m         segment errors, the paper's definition
    devkit_pct, devkit_deg_per_100m   segment errors, the KITTI devkit's definition
    f2f_deg                           mean angle between true and estimated frame-to-frame rotation
    nll, nees                         of the frame-to-frame errors under their covariances
    """

    ate_m: float
    ate_deg: float
    seg_pct: float | None
    seg_deg_per_100m: float | None
    devkit_pct: float | None
    devkit_deg_per_100m: float | None
    f2f_deg: float | None
    nll: float | None = None
    nees: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """The figures by name; nll and nees only where there were covariances."""
        optional = ("nll", "nees")
        return {k: v for k, v in vars(self).items() if k not in optional or v is not None}


def evaluate(
    T_w_c_est: Array,
    T_w_c_gt: Array,
    Sigma_2_1: Array | None = None,
    alignment: Alignment = "none",
) -> TrajectoryErrors:
    """Compare two trajectories (N, 4, 4) pose by pose.

    `Sigma_2_1` covers the frame-to-frame motion: (N - 1, 6, 6), or (N - 1, 3, 3) of its rotation.
    """
    if len(T_w_c_est) != len(T_w_c_gt):
        raise ValueError(f"{len(T_w_c_est)} estimated poses, but {len(T_w_c_gt)} true ones")
    estimate = align(T_w_c_est, T_w_c_gt, alignment)
    ate_m, ate_deg = mean_absolute_error(estimate, T_w_c_gt)
    seg_pct, seg_deg, devkit_pct, devkit_deg = segment_errors(estimate, T_w_c_gt)
    errors = frame_to_frame_errors(estimate, T_w_c_gt)
    f2f = float(np.rad2deg(np.linalg.norm(errors[:, 3:], axis=1)).mean()) if len(errors) else None
    nll = mean_nees = None
    if Sigma_2_1 is not None and len(errors):
        nll, mean_nees = mean_nll_and_nees(errors[:, -Sigma_2_1.shape[-1] :], Sigma_2_1)
    return TrajectoryErrors(
        ate_m, ate_deg, seg_pct, seg_deg, devkit_pct, devkit_deg, f2f, nll, mean_nees
    )


@dataclass(frozen=True)
class RotationFigures:
    """Of rotations between neighbouring frames.

    mean_deg                      mean angle to the true rotation
    nll, nees                     under Sigma = epistemic + aleatoric
    bias_deg                      mean of Log(C_est C_gt^-1), per axis and frame
    seg_deg_per_100m              of the rotations chained, with true translations (the paper's)
    aleatoric_deg, epistemic_deg  root of the median variance per axis
    """

    mean_deg: float
    nll: float
    nees: float
    bias_deg: tuple[float, float, float]
    seg_deg_per_100m: float | None
    aleatoric_deg: float
    epistemic_deg: float


def evaluate_rotations(
    C_2_1: Array, Sigma_2_1: Array, epistemic: Array, T_w_c_gt: Array
) -> RotationFigures:
    """Compare (N - 1, 3, 3) rotations with N true poses."""
    phi = rotation_errors(C_2_1, T_w_c_gt)
    nll, mean_nees = mean_nll_and_nees(phi, Sigma_2_1)
    x, y, z = np.rad2deg(phi.mean(axis=0))
    T_gt = lie.se3_inverse(T_w_c_gt[1:]) @ T_w_c_gt[:-1]
    T_w_c = chain(lie.se3_from(C_2_1, T_gt[:, :3, 3]), T_w_c_gt[0])
    return RotationFigures(
        float(np.rad2deg(np.linalg.norm(phi, axis=1)).mean()),
        nll,
        mean_nees,
        (float(x), float(y), float(z)),
        segment_errors(T_w_c, T_w_c_gt)[1],
        _median_deg(Sigma_2_1 - epistemic),
        _median_deg(epistemic),
    )


def rotation_errors(C_2_1: Array, T_w_c_gt: Array) -> Array:
    """Log(C_est C_gt^-1), (N - 1, 3): left perturbations, as the covariances are."""
    C_gt = (lie.se3_inverse(T_w_c_gt[1:]) @ T_w_c_gt[:-1])[:, :3, :3]
    return lie.so3_log(C_2_1 @ lie.so3_inverse(C_gt))


@dataclass(frozen=True)
class BlockFigures:
    """Of rotations chained over blocks of frames that do not overlap.

    blocks     how many were whole
    mean_deg   mean angle to the true rotation of a block
    nees       of a block's error under the summed covariances; 3 if errors are white and honest
    bias_deg   mean of a block's error vector, per axis and frame
    """

    blocks: int
    mean_deg: float
    nees: float
    bias_deg: tuple[float, float, float]


def block_figures(
    C_2_1: Array, Sigma_2_1: Array, C_2_1_gt: Array, frames: int
) -> BlockFigures | None:
    """Compare (M, 3, 3) consecutive rotations, NaN where one is not known, over blocks."""
    phi, Sigma = block_errors(C_2_1, Sigma_2_1, C_2_1_gt, frames)
    if not len(phi):
        return None
    x, y, z = np.rad2deg(phi.mean(axis=0)) / frames
    return BlockFigures(
        len(phi),
        float(np.rad2deg(np.linalg.norm(phi, axis=1)).mean()),
        float(nees(phi, Sigma).mean()),
        (float(x), float(y), float(z)),
    )


def block_errors(
    C_2_1: Array, Sigma_2_1: Array, C_2_1_gt: Array, frames: int
) -> tuple[Array, Array]:
    """Log(C_est C_gt^-1) over blocks, (B, 3), with covariances (B, 3, 3) in the last frame.

    C = C_n ... C_1 and Sigma = sum A_i Sigma_i A_i^T with A_i = C_n ... C_(i+1), as if errors were
    independent. A block in which anything is not known is left out.
    """
    count = len(C_2_1) // frames
    blocks = [
        each[: count * frames].reshape(count, frames, 3, 3)
        for each in (C_2_1, Sigma_2_1, C_2_1_gt)
    ]
    whole = np.logical_and.reduce([np.isfinite(each).all(axis=(1, 2, 3)) for each in blocks])
    C, Sigma, C_gt = (each[whole] for each in blocks)
    estimate = truth = np.tile(np.eye(3), (len(C), 1, 1))
    total = np.zeros((len(C), 3, 3))
    for i in range(frames):
        estimate, total = compose_with_covariance(C[:, i], Sigma[:, i], estimate, total)
        truth = C_gt[:, i] @ truth
    return lie.so3_log(estimate @ lie.so3_inverse(truth)), total


def _median_deg(covariances: Array) -> float:
    variance = np.median(np.trace(covariances, axis1=1, axis2=2)) / 3.0
    return float(np.rad2deg(np.sqrt(max(variance, 0.0))))


def mean_absolute_error(T_w_c_est: Array, T_w_c_gt: Array) -> tuple[float, float]:
    """m-ATE: mean |trans| in m and mean angle in deg of inv(T_est) T_gt."""
    error = lie.se3_inverse(T_w_c_est) @ T_w_c_gt
    angle = np.rad2deg(np.linalg.norm(lie.so3_log(error[:, :3, :3]), axis=1))
    return float(np.linalg.norm(error[:, :3, 3], axis=1).mean()), float(angle.mean())


def frame_to_frame_errors(T_w_c_est: Array, T_w_c_gt: Array) -> Array:
    """Log(T_2_1_est inv(T_2_1_gt)), (N - 1, 6): left perturbations, as the covariances are."""
    est = lie.se3_inverse(T_w_c_est[1:]) @ T_w_c_est[:-1]
    gt = lie.se3_inverse(T_w_c_gt[1:]) @ T_w_c_gt[:-1]
    return lie.se3_log(est @ lie.se3_inverse(gt))


def nees(errors: Array, covariances: Array) -> Array:
    """NEES e' S^-1 e, (..., n) -> (...), of errors; of innovations it is the NIS."""
    weighted = np.linalg.solve(covariances, errors[..., None])[..., 0]
    return np.asarray(np.sum(errors * weighted, axis=-1))


def mean_nll_and_nees(errors: Array, covariances: Array) -> tuple[float, float]:
    """Mean of e' S^-1 e / 2 + log det(S) / 2 (the paper's: no 2 pi term), and of e' S^-1 e."""
    squared = nees(errors, covariances)
    log_determinant = np.linalg.slogdet(covariances)[1]
    return float(np.mean(0.5 * squared + 0.5 * log_determinant)), float(np.mean(squared))


def segment_errors(
    T_w_c_est: Array, T_w_c_gt: Array
) -> tuple[float | None, float | None, float | None, float | None]:
    """Segment errors, % and deg/100 m: the paper's, then the devkit's; None on a short path."""
    steps = np.linalg.norm(np.diff(T_w_c_gt[:, :3, 3], axis=0), axis=1)
    distance = np.concatenate([[0.0], np.cumsum(steps)])
    first = np.tile(np.arange(len(distance)), len(SEGMENT_LENGTHS_M))
    length = np.repeat(SEGMENT_LENGTHS_M, len(distance))
    last = np.searchsorted(distance, distance[first] + length, side="right")
    inside = last < len(distance)
    first, last, length = first[inside], last[inside], length[inside]
    if not len(first):
        return None, None, None, None
    est = lie.se3_inverse(T_w_c_est)[first] @ T_w_c_est[last]
    gt = lie.se3_inverse(T_w_c_gt)[first] @ T_w_c_gt[last]
    error = lie.se3_inverse(est) @ gt
    percent = 100.0 * np.linalg.norm(error[:, :3, 3], axis=1) / length
    degrees = 100.0 * np.rad2deg(np.linalg.norm(lie.so3_log(error[:, :3, :3]), axis=1)) / length
    devkit = first % DEVKIT_STRIDE == 0
    return (
        _mean_of_means(percent, length),
        _mean_of_means(degrees, length),
        float(percent[devkit].mean()) if devkit.any() else None,
        float(degrees[devkit].mean()) if devkit.any() else None,
    )


def _mean_of_means(values: Array, groups: Array) -> float:
    return float(np.mean([values[groups == group].mean() for group in np.unique(groups)]))


def _scale(p: Array, g: Array) -> float:
    """The scale sum g . p / sum p . p; a path that stands still has none."""
    for name, path in (("the truth", g), ("the estimate", p)):
        spread = float(np.sqrt(np.mean(np.sum(path * path, axis=1))))
        if spread < LEAST_SPREAD_M:
            raise HydraNetError(
                f"Sim3: {name} stands still (spread {spread:.2g} m), so that there is no scale: "
                "align with SE3"
            )
    scale = float(np.sum(g * p)) / float(np.sum(p * p))
    if not scale > 0.0:
        raise HydraNetError("Sim3: the paths have nothing in common, so that there is no scale")
    return scale


def align(T_w_c_est: Array, T_w_c_gt: Array, alignment: Alignment) -> Array:
    """Move the estimate to the truth: not at all, at the first pose, or by least squares.

    SE3 and Sim3 minimise sum |s R p_est + t - p_gt|^2 over positions (Umeyama, 1991); Sim3 also
    finds the scale, for monocular estimates.
    """
    if alignment == "none":
        return T_w_c_est
    if alignment == "first":
        return T_w_c_gt[0] @ lie.se3_inverse(T_w_c_est[0]) @ T_w_c_est
    if alignment not in ALIGNMENTS:
        raise ValueError(f"alignment must be one of {', '.join(ALIGNMENTS)}, got {alignment!r}")
    p, g = T_w_c_est[:, :3, 3], T_w_c_gt[:, :3, 3]
    p0, g0 = p - p.mean(axis=0), g - g.mean(axis=0)
    rotation = lie.project_to_so3(g0.T @ p0)
    scale = 1.0
    if alignment == "Sim3":
        scale = _scale(p0 @ rotation.T, g0)
    positions = scale * p0 @ rotation.T + g.mean(axis=0)
    return lie.se3_from(rotation @ T_w_c_est[:, :3, :3], positions)
