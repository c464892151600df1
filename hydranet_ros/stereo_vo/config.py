"""Settings of the stereo visual odometry; every default says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

from hydranet_ros.settings import about, check


@dataclass(frozen=True)
class StereoVOConfig:
    """Settings of `StereoVO`. Lengths are in pixels of the input image unless a suffix says else.

    The defaults hold for images of 0.2 to 2 megapixels at 5 to 30 Hz; nothing depends on one data
    set's camera.
    """

    # --- features
    cells: int = field(
        default=600,
        metadata=about(
            "Detection cells in the image; each holds at most one new feature, which spreads them",
            1,
        ),
    )
    corner_block_px: int = field(
        default=5,
        metadata=about(
            "Window of the corner measure: smaller than the tracking window, larger than pixel "
            "noise",
            1,
        ),
    )
    corner_contrast: float = field(
        default=4.0,
        metadata=about(
            "Least RMS gradient, in grey levels per pixel, along a corner's weaker direction. "
            "Noise and JPEG blocks stay below 2; a corner that matters to tracking is well "
            "above",
            1e-6,
        ),
    )
    max_features: int = field(
        default=480,
        metadata=about(
            "Most features kept, the strongest first; the time per frame grows with them",
            1,
        ),
    )
    border_px: int = field(
        default=8,
        metadata=about(
            "No features this close to the image's edge, where windows leave the image",
            1,
        ),
    )

    # --- tracking
    window_px: int = field(
        default=13,
        metadata=about(
            "Tracking window: small ones follow the surface, large ones average the noise",
            1,
        ),
    )
    pyramid_levels: int = field(
        default=3,
        metadata=about(
            "Coarser levels below the full image: a search of about window_px / 2 * 2^levels",
            1,
        ),
    )
    guided_levels: int = field(
        default=2,
        metadata=about(
            "Likewise for searches in the right images, which start from what the left ones "
            "showed",
            1,
        ),
    )
    track_iterations: int = field(
        default=15,
        metadata=about(
            "Most Lucas-Kanade steps per level",
            1,
        ),
    )
    track_epsilon_px: float = field(
        default=0.01,
        metadata=about(
            "Lucas-Kanade stops at steps below this: a tenth of the tracking noise",
            1e-6,
        ),
    )
    circle_px: float = field(
        default=1.0,
        metadata=about(
            "Largest gap between the two ways round: previous right to current right directly, "
            "and over the two left images. About five times the tracking noise",
            1e-6,
        ),
    )
    row_px: float = field(
        default=2.0,
        metadata=about(
            "Largest vertical offset of a stereo match after correction; a rectified pair has "
            "none, a badly rectified one up to 1.5 px before its error is estimated",
            1e-6,
        ),
    )
    min_disparity_px: float = field(
        default=0.7,
        metadata=about(
            "Points with less are as good as at infinity and their depth is mostly noise",
            1e-6,
        ),
    )

    # --- motion
    hypotheses: int = field(
        default=64,
        metadata=about(
            "Three-point samples: with 40 % of the tracks wrong, all fail once in 5 million "
            "frames",
            1,
        ),
    )
    sample_iterations: int = field(
        default=3,
        metadata=about(
            "Gauss-Newton steps on each sample, from the predicted motion",
            1,
        ),
    )
    inlier_px: float = field(
        default=2.0,
        metadata=about(
            "Largest stereo reprojection error of an inlier of a sample",
            1e-6,
        ),
    )
    iterations: int = field(
        default=5,
        metadata=about(
            "Most Gauss-Newton steps on all inliers; the last ones change millionths",
            1,
        ),
    )
    tracking_sigma_px: float = field(
        default=0.08,
        metadata=about(
            "Noise of tracking over time where the window does not change; measured on real "
            "streets, and corrected every frame by the scale of the residuals",
            1e-6,
        ),
    )
    stereo_sigma_px: float = field(
        default=0.04,
        metadata=about(
            "Least noise of stereo matching, likewise; more is read off the rows of the matches",
            1e-6,
        ),
    )
    edge_px: float = field(
        default=0.25,
        metadata=about(
            "A change of the window by so much at its edge doubles the variance (see noise.py)",
            1e-6,
        ),
    )
    jitter_sigma_px: float = field(
        default=0.1,
        metadata=about(
            "How far the right image moves against the left one from frame to frame",
            1e-6,
        ),
    )
    information_share: float = field(
        default=0.1,
        metadata=about(
            "Weight of a frame's tracks in the estimate of the rectification: a track lives "
            "about ten frames and repeats its stereo error in each",
            1e-6,
            1.0,
        ),
    )
    forget_share: float = field(
        default=1e-3,
        metadata=about(
            "What is forgotten of the rectification per frame, so that it may follow the "
            "temperature",
            0.0,
            1.0,
        ),
    )
    seed: int = field(
        default=0,
        metadata=about(
            "Of the samples; together with the stamp, so a frame's result does not depend on "
            "history",
            0,
        ),
    )

    # --- covariance (see covariance.py)
    shake_share: float = field(
        default=1.0,
        metadata=about(
            "How much of a vibration faster than the frame rate is unknown at a stamp. 1: all "
            "of it, as white motion cannot be interpolated. Less where stamps are exact to well "
            "below a period",
            0.0,
            1.0,
        ),
    )
    calibration_share: float = field(
        default=0.5,
        metadata=about(
            "Share of the depth error found in the rectification that is assumed to remain unseen",
            0.0,
            1.0,
        ),
    )

    # --- when to say lost
    min_contrast: float = field(
        default=3.0,
        metadata=about(
            "An image whose grey levels have a smaller standard deviation is black, white or "
            "fogged",
            1e-6,
        ),
    )
    min_features: int = field(
        default=40,
        metadata=about(
            "Fewer features, or fewer stereo matches, are too few to start from",
            1,
        ),
    )
    min_inliers: int = field(
        default=20,
        metadata=about(
            "Fewer agreeing tracks are no evidence of motion",
            1,
        ),
    )
    min_inlier_share: float = field(
        default=0.35,
        metadata=about(
            "Of the tracks; below this the largest moving object may be taken for the world",
            1e-3,
            1.0,
        ),
    )
    max_rotation_sigma_rad: float = field(
        default=0.02,
        metadata=about(
            "A larger predicted standard deviation means that the geometry does not fix the "
            "motion",
            1e-6,
        ),
    )
    max_translation_sigma_m: float = field(
        default=0.5,
        metadata=about(
            "Likewise for the translation",
            1e-6,
        ),
    )
    max_bridged_frames: int = field(
        default=5,
        metadata=about(
            "So many unusable frames are bridged from the last good one before it is given up",
            1,
        ),
    )

    def __post_init__(self) -> None:
        check(self)
        if self.window_px % 2 == 0:
            raise ValueError(f"window_px must be odd, got {self.window_px}")
        if not self.min_inlier_share < 1.0:
            raise ValueError(f"min_inlier_share must be below 1, got {self.min_inlier_share}")
