"""Other methods for the rotation between two images, to compare ours with in the same run.

Five-point: corners (goodFeaturesToTrack), pyramidal LK forth and back, the essential matrix by
USAC_MAGSAC with 0.8 px, and of its two rotations the smaller. Where PoseLib is installed, its
estimate from the same tracks as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import cv2
import numpy as np

from hydranet_ros.evaluation.record import on_frames
from hydranet_ros.geometry import lie, metrics
from hydranet_ros.geometry.camera import Camera, Image
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps
from hydranet_ros.geometry.trajectory import Trajectory

CORNERS, QUALITY, APART_PX, BACK_PX = 1000, 0.01, 8, 0.5
CONFIDENCE, THRESHOLD_PX, LEAST_TRACKS = 0.9999, 0.8, 8
FIVE_POINT, POSELIB = "five-point", "PoseLib"


class Peer(Protocol):
    """A method that sees one image after the other."""

    def update(self, image: Image) -> Array | None:
        """C_2_1 since the last image; None where it finds none."""


def peers(camera: Camera) -> dict[str, Peer]:
    """Those that are installed, by name."""
    found: dict[str, Peer] = {FIVE_POINT: FivePoint(camera)}
    if find_spec("poselib") is not None:
        found[POSELIB] = PoseLib(camera)
    return found


class Tracks:
    """Corners of an image that are found in the next, and back again."""

    def __init__(self) -> None:
        self._last: Image | None = None

    def update(self, image: Image) -> tuple[Array, Array] | None:
        """Pixels (n, 2) in the last image and in this one; None where there are too few."""
        last, self._last = self._last, image
        if last is None:
            return None
        corners = cv2.goodFeaturesToTrack(last, CORNERS, QUALITY, APART_PX)
        if corners is None:
            return None
        there, seen, _ = cv2.calcOpticalFlowPyrLK(last, image, corners, None)  # type: ignore[call-overload]
        back, again, _ = cv2.calcOpticalFlowPyrLK(image, last, there, None)  # type: ignore[call-overload]
        near = np.linalg.norm((corners - back)[:, 0], axis=1) < BACK_PX
        tracked = (seen[:, 0] > 0) & (again[:, 0] > 0) & near
        if tracked.sum() < LEAST_TRACKS:
            return None
        return corners[tracked, 0], there[tracked, 0]


class FivePoint:
    """The essential matrix by OpenCV."""

    def __init__(self, camera: Camera) -> None:
        self._K, self._tracks = camera.matrix, Tracks()

    def update(self, image: Image) -> Array | None:
        """C_2_1 since the last image; None where there is too little to track."""
        points = self._tracks.update(image)
        if points is None:
            return None
        E, _ = cv2.findEssentialMat(*points, self._K, cv2.USAC_MAGSAC, CONFIDENCE, THRESHOLD_PX)
        if E is None or E.shape[0] < 3:
            return None
        both = cv2.decomposeEssentialMat(E[:3])[:2]
        return min(both, key=lambda C: float(np.linalg.norm(lie.so3_log(C))))


class PoseLib:
    """The relative pose by PoseLib: LO-RANSAC, then a refinement of its own."""

    def __init__(self, camera: Camera) -> None:
        self._library: Any = import_module("poselib")
        self._params, self._tracks = [camera.fx, camera.fy, camera.cx, camera.cy], Tracks()

    def update(self, image: Image) -> Array | None:
        """C_2_1 since the last image; None where there is too little to track."""
        points = self._tracks.update(image)
        if points is None:
            return None
        height, width = image.shape
        camera = {"model": "PINHOLE", "width": width, "height": height, "params": self._params}
        options = {"max_epipolar_error": THRESHOLD_PX, "success_prob": CONFIDENCE}
        pose, _ = self._library.estimate_relative_pose(*points, camera, camera, options, {})
        return np.asarray(pose.R, dtype=np.float64)


# --- figures -------------------------------------------------------------------------------------


def rotation_comparison(
    ours: Sequence[RelativeRotation],
    others: Mapping[str, Array],
    truth: Trajectory,
    stamps_ns: Stamps,
    lengths: Iterable[int],
) -> dict[int, dict[str, Any]]:
    """Errors over blocks of frames in which everybody has every rotation, and the NEES of ours.

    `others` are (N - 1, 3, 3) from frame to frame, NaN where there is none.
    """
    C, Sigma, C_gt = on_frames(ours, truth, stamps_ns)
    every = {"ours": C, **others}
    missing = np.logical_or.reduce([np.isnan(each[:, :1, :1]) for each in every.values()])
    ones = np.tile(np.eye(3), (len(C), 1, 1))
    found: dict[int, dict[str, Any]] = {}
    for length in lengths:
        angles = {
            name: np.rad2deg(
                np.linalg.norm(
                    metrics.block_errors(np.where(missing, np.nan, each), ones, C_gt, length)[0],
                    axis=1,
                )
            )
            for name, each in every.items()
        }
        alone = metrics.block_figures(C, Sigma, C_gt, length)
        found[length] = {
            "blocks": len(angles["ours"]),
            "mean_deg": {name: _of(np.mean, each) for name, each in angles.items()},
            "median_deg": {name: _of(np.median, each) for name, each in angles.items()},
            "nees": None if alone is None else alone.nees,
            "nees_lasting": lasting_nees(ours, truth, stamps_ns, length),
            "bias_deg": None if alone is None else alone.bias_deg,
        }
    return found


def lasting_nees(
    rotations: Sequence[RelativeRotation], truth: Trajectory, stamps_ns: Stamps, length: int
) -> float | None:
    """NEES of blocks whose covariance is that of `then`: what persists adds up as it does."""
    _, _, C_gt = on_frames(rotations, truth, stamps_ns)
    of_frame = {stamp: i for i, stamp in enumerate(stamps_ns.tolist())}
    steps = {of_frame[each.stamp_1_ns]: each for each in rotations}
    values = []
    for start in range(0, len(C_gt) - length + 1, length):
        block = [steps.get(k) for k in range(start, start + length)]
        if not np.isfinite(C_gt[start : start + length]).all():
            continue
        chain, expected = None, np.eye(3)
        for k, each in enumerate(block, start=start):
            if each is None or each.stamp_2_ns != stamps_ns[k + 1]:
                break
            chain, expected = each if chain is None else chain.then(each), C_gt[k] @ expected
        else:
            assert chain is not None
            e = lie.so3_log(chain.C_2_1 @ expected.T)
            values.append(float(e @ np.linalg.solve(chain.Sigma_2_1, e)))
    return float(np.mean(values)) if values else None


def _of(statistic: Any, values: Array) -> float | None:
    return float(statistic(values)) if len(values) else None
