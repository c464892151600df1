"""Settings of the stereo visual odometry; every default says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hydranet_ros.settings import Configuration, setting


@dataclass(frozen=True)
class StereoVOConfig(Configuration):
    """Settings of `StereoVO`. Lengths are in pixels of the input image unless a suffix says else.

    The defaults hold for images of 0.2 to 2 megapixels at 5 to 30 Hz; nothing depends on one data
    set's camera.
    """

    # --- features
    cells: int = setting(
        600,
        "Detection cells in the image; each holds at most one new feature, which spreads them",
        1,
    )
    corner_block_px: int = setting(
        5,
        "Window of the corner measure: smaller than the tracking window, larger than pixel noise",
        1,
    )
    corner_contrast: float = setting(
        4.0,
        "Least RMS gradient, in grey levels per pixel, along a corner's weaker direction. Noise "
        "and JPEG blocks stay below 2; a corner that matters to tracking is well above",
        1e-06,
    )
    max_features: int = setting(
        480, "Most features kept, the strongest first; the time per frame grows with them", 1
    )
    border_px: int = setting(
        8, "No features this close to the image's edge, where windows leave the image", 1
    )

    # --- tracking
    window_px: int = setting(
        9,
        "Tracking window: small ones follow the surface, large ones average the noise. Windows on "
        "an edge in depth make distances wrong: by -0.26, +0.63 % on a rendered street and in an "
        "office with 13 px, by -0.18, +0.36 % with 9; 7 px is worse in noise and blur",
        1,
    )
    match_ratio: float = setting(
        2.0,
        "Windows that differ in left and right by so many times the usual difference are left "
        "out, as they show two surfaces: then -0.14, +0.22 % as above",
        1.0,
    )
    pyramid_levels: int = setting(
        4, "Coarser levels below the full image: a search of about window_px / 2 * 2^levels", 1
    )
    guided_levels: int = setting(
        2,
        "Likewise for searches in the right images, which start from what the left ones showed",
        1,
    )
    track_iterations: int = setting(8, "Most Lucas-Kanade steps per level", 1)
    track_epsilon_px: float = setting(
        0.03, "Lucas-Kanade stops at steps below this: a third of the tracking noise", 1e-06
    )
    circle_px: float = setting(
        1.0,
        "Largest gap between the two ways round: previous right to current right directly, and "
        "over the two left images. About five times the tracking noise",
        1e-06,
    )
    row_px: float = setting(
        2.0,
        "Largest vertical offset of a stereo match after correction; a rectified pair has none, "
        "a badly rectified one up to 1.5 px before its error is estimated",
        1e-06,
    )
    min_disparity_px: float = setting(
        0.7, "Points with less are as good as at infinity and their depth is mostly noise", 1e-06
    )

    # --- motion
    hypotheses: int = setting(
        64,
        "Three-point samples: with 40 % of the tracks wrong, all fail once in 5 million frames",
        1,
    )
    sample_iterations: int = setting(
        3, "Gauss-Newton steps on each sample, from the predicted motion", 1
    )
    inlier_px: float = setting(
        2.0, "Largest stereo reprojection error of an inlier of a sample", 1e-06
    )
    iterations: int = setting(
        3, "Most Gauss-Newton steps on all inliers; further ones change millionths", 1
    )
    tracking_sigma_px: float = setting(
        0.08,
        "Noise of tracking over time where the window does not change; measured on real streets, "
        "and corrected every frame by the scale of the residuals",
        1e-06,
    )
    stereo_sigma_px: float = setting(
        0.04,
        "Least noise of stereo matching, likewise; more is read off the rows of the matches",
        1e-06,
    )
    depth_sigma: float = setting(
        0.0015,
        "Noise of an RGB-D camera's depth at one metre, in metres; it grows with the square of "
        "the depth. Usual of structured light",
        1e-06,
    )
    edge_px: float = setting(
        0.5,
        "A change of the window by so much at its edge doubles the variance (see noise.py). "
        "Between the best of 0.25, 0.4, 0.6, 1 for rotations on rendered streets, 0.4 and 0.6; on "
        "KITTI 06 these are 0.209, 0.194, 0.184, 0.179 deg/100 m",
        1e-06,
    )
    jitter_sigma_px: float = setting(
        0.1, "How far the right image moves against the left one from frame to frame", 1e-06
    )
    self_calibration: Literal["auto", "off"] = setting(
        "auto",
        "auto estimates what the calibration left wrong in the images while it goes on (see "
        "calibration.py); off keeps what `calibration` says, or nothing",
    )
    calibration: str = setting(
        "", "file of an earlier self-calibration of this pair, to start from", live=False
    )
    information_share: float = setting(
        0.06,
        "Weight of a frame's tracks in the self-calibration: a track lives about ten frames and "
        "repeats its errors in each, and its neighbours err alike. The best of 0.03, 0.06, 0.1 on "
        "KITTI 06; at each, rendered cameras without errors are found to have none",
        1e-06,
        1.0,
    )
    forget_share: float = setting(
        0.001,
        "What is forgotten of the self-calibration per frame, so that it follows the temperature",
        0.0,
        1.0,
    )
    seed: int = setting(
        0,
        "Of the samples; together with the stamp, so a frame's result does not depend on history",
        0,
    )

    # --- covariance (see covariance.py)
    shake_share: float = setting(
        0.9,
        "How much of a vibration faster than the frame rate is unknown at a stamp. 1: all of it, "
        "as white motion cannot be interpolated. Less where stamps are exact to well below a "
        "period. At 1, 0.9, 0.8 NEES over 1 and 100 frames of KITTI 09 is 3.1 and 9.9, 3.7 and "
        "10.6, 4.6 and 11.5",
        0.0,
        1.0,
    )
    scale_sigma: float = setting(
        0.004,
        "What no image shows, the same in every frame: the baseline, as a share of it, and the "
        "principal point, as an angle in radians. They are known to some thousandths (KITTI 06: "
        "0.4 % in distance, 3 mrad in direction)",
        0.0,
        1.0,
    )

    # --- when to say lost
    min_contrast: float = setting(
        3.0,
        "An image whose grey levels have a smaller standard deviation is black, white or fogged",
        1e-06,
    )
    min_features: int = setting(
        40, "Fewer features, or fewer stereo matches, are too few to start from", 1
    )
    min_inliers: int = setting(20, "Fewer agreeing tracks are no evidence of motion", 1)
    min_inlier_share: float = setting(
        0.35,
        "Of the tracks; below this the largest moving object may be taken for the world",
        0.001,
        1.0,
    )
    max_rotation_sigma_rad: float = setting(
        0.02,
        "A larger predicted standard deviation means that the geometry does not fix the motion",
        1e-06,
    )
    max_translation_sigma_m: float = setting(0.5, "Likewise for the translation", 1e-06)
    max_bridged_frames: int = setting(
        5, "So many unusable frames are bridged from the last good one before it is given up", 1
    )

    floor_m: float = setting(0.0005, "Least standard deviation of a translation, in metres")
    floor_deg: float = setting(0.001, "Least standard deviation of a rotation, in degrees")
    rival_share: float = setting(
        0.25,
        "Where so large a share of the inliers' number agrees on another motion, the covariance "
        "is widened by the difference",
        0.01,
        1.0,
    )
    lag_share: float = setting(
        0.5,
        "A pair is not of one instant where its rows differ by so large a share of the vertical "
        "motion of the features",
        0.1,
        1.0,
    )
    max_interval_s: float = setting(
        1.0, "Frames further apart than this are not compared: odometry starts again", 1e-3
    )

    def validate(self) -> None:
        """Check what no field can tell alone."""
        if self.window_px % 2 == 0:
            raise ValueError(f"window_px must be odd, got {self.window_px}")
        if not self.min_inlier_share < 1.0:
            raise ValueError(f"min_inlier_share must be below 1, got {self.min_inlier_share}")
