"""Settings of the stereo visual odometry; every default says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, fields

_MAY_BE_ZERO = ("seed", "shake_share", "calibration_share", "forget_share")


@dataclass(frozen=True)
class StereoVOConfig:
    """Settings of `StereoVO`. Lengths are in pixels of the input image unless a suffix says else.

    The defaults hold for images of 0.2 to 2 megapixels at 5 to 30 Hz; nothing depends on one data
    set's camera.
    """

    # --- features
    cells: int = 600
    """Detection cells in the image; each holds at most one new feature, which spreads them."""
    corner_block_px: int = 5
    """Window of the corner measure: smaller than the tracking window, larger than pixel noise."""
    corner_contrast: float = 4.0
    """Least RMS gradient, in grey levels per pixel, along a corner's weaker direction. Noise
    and JPEG blocks stay below 2; a corner that matters to tracking is well above."""
    max_features: int = 480
    """Most features kept, the strongest first; the time per frame grows with them."""
    border_px: int = 8
    """No features this close to the image's edge, where windows leave the image."""

    # --- tracking
    window_px: int = 13
    """Tracking window: small ones follow the surface, large ones average the noise."""
    pyramid_levels: int = 3
    """Coarser levels below the full image: a search of about window_px / 2 * 2^levels."""
    guided_levels: int = 2
    """Likewise for searches in the right images, which start from what the left ones showed."""
    track_iterations: int = 15
    """Most Lucas-Kanade steps per level."""
    track_epsilon_px: float = 0.01
    """Lucas-Kanade stops at steps below this: a tenth of the tracking noise."""
    circle_px: float = 1.0
    """Largest gap between the two ways round: previous right to current right directly, and over
    the two left images. About five times the tracking noise."""
    row_px: float = 2.0
    """Largest vertical offset of a stereo match after correction; a rectified pair has none, a
    badly rectified one up to 1.5 px before its error is estimated."""
    min_disparity_px: float = 0.7
    """Points with less are as good as at infinity and their depth is mostly noise."""

    # --- motion
    hypotheses: int = 64
    """Three-point samples: with 40 % of the tracks wrong, all fail once in 5 million frames."""
    sample_iterations: int = 3
    """Gauss-Newton steps on each sample, from the predicted motion."""
    inlier_px: float = 2.0
    """Largest stereo reprojection error of an inlier of a sample."""
    iterations: int = 5
    """Most Gauss-Newton steps on all inliers; the last ones change millionths."""
    tracking_sigma_px: float = 0.08
    """Noise of tracking over time where the window does not change; measured on real streets, and
    corrected every frame by the scale of the residuals."""
    stereo_sigma_px: float = 0.04
    """Least noise of stereo matching, likewise; more is read off the rows of the matches."""
    edge_px: float = 0.25
    """A change of the window by so much at its edge doubles the variance (see noise.py)."""
    jitter_sigma_px: float = 0.1
    """How far the right image moves against the left one from frame to frame."""
    information_share: float = 0.1
    """Weight of a frame's tracks in the estimate of the rectification: a track lives about ten
    frames and repeats its stereo error in each."""
    forget_share: float = 1e-3
    """What is forgotten of the rectification per frame, so that it may follow the temperature."""
    seed: int = 0
    """Of the samples; together with the stamp, so a frame's result does not depend on history."""

    # --- covariance (see covariance.py)
    shake_share: float = 1.0
    """How much of a vibration faster than the frame rate is unknown at a stamp. 1: all of it, as
    white motion cannot be interpolated. Less where stamps are exact to well below a period."""
    calibration_share: float = 0.5
    """Share of the depth error found in the rectification that is assumed to remain unseen."""

    # --- when to say lost
    min_contrast: float = 3.0
    """An image whose grey levels have a smaller standard deviation is black, white or fogged."""
    min_features: int = 40
    """Fewer features, or fewer stereo matches, are too few to start from."""
    min_inliers: int = 20
    """Fewer agreeing tracks are no evidence of motion."""
    min_inlier_share: float = 0.35
    """Of the tracks; below this the largest moving object may be taken for the world."""
    max_rotation_sigma_rad: float = 0.02
    """A larger predicted standard deviation means that the geometry does not fix the motion."""
    max_translation_sigma_m: float = 0.5
    """Likewise for the translation."""
    max_bridged_frames: int = 5
    """So many unusable frames are bridged from the last good one before it is given up."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _MAY_BE_ZERO and value >= 0:
                continue
            if not value > 0:
                raise ValueError(f"{field.name} must be positive, got {value}")
        if self.window_px % 2 == 0:
            raise ValueError(f"window_px must be odd, got {self.window_px}")
        if not self.min_inlier_share < 1.0:
            raise ValueError(f"min_inlier_share must be below 1, got {self.min_inlier_share}")
