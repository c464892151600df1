"""What an update of the stereo visual odometry returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hydranet_ros.geometry.estimates import RelativePose


class Lost(Enum):
    """Why there is no motion. The values are texts fit for a log or a diagnostic message."""

    INITIALISING = "initialising: the first frame has nothing to be compared with"
    LONG_GAP = "long gap: the last frame is too long ago to be compared with"
    REPEATED_IMAGE = "repeated image: the same bytes with a new stamp"
    FLAT_IMAGE = "flat image: black, white or without contrast"
    TOO_FEW_FEATURES = "too few features: blurred or without texture"
    NOT_A_STEREO_PAIR = "left and right do not match: not a rectified pair of one instant"
    NO_DEPTH = "too few features have a depth"
    SWAPPED_CAMERAS = "negative disparities: left and right are swapped"
    CAMERAS_DISAGREE = "cameras disagree in time: one image of the pair is a frame late"
    TOO_FEW_TRACKS = "too few features could be followed from the previous frame"
    TOO_FEW_INLIERS = "too few tracks agree on one motion"
    DEGENERATE_GEOMETRY = "the tracked points do not fix the motion"


# After these the next frame is compared with the same earlier one, after others with this one.
BRIDGED = frozenset(
    {
        Lost.REPEATED_IMAGE,
        Lost.FLAT_IMAGE,
        Lost.TOO_FEW_FEATURES,
        Lost.NOT_A_STEREO_PAIR,
        Lost.NO_DEPTH,
        Lost.SWAPPED_CAMERAS,
    }
)


@dataclass(frozen=True)
class VOStatistics:
    """How a frame went: counts, and the residual scale (1: noise as configured)."""

    features: int = 0
    tracks: int = 0
    inliers: int = 0
    residual_scale: float = float("nan")
    milliseconds: float = float("nan")


@dataclass(frozen=True, eq=False)
class VOResult:
    """Either `pose`, from `stamp_1_ns` to `stamp_2_ns`, or `lost`, the reason why there is none.

    `stamp_1_ns` is the frame compared with: the last usable one, which after bridged bad frames
    is not the one just before. None where there was none.
    """

    stamp_2_ns: int
    stamp_1_ns: int | None
    pose: RelativePose | None
    lost: Lost | None
    statistics: VOStatistics

    @property
    def bridged(self) -> bool:
        """Whether the frame is unusable, and the next one is compared with the one before it."""
        return self.lost in BRIDGED

    @property
    def ok(self) -> bool:
        """Whether there is a pose."""
        return self.pose is not None
