"""The 7-Scenes data set: RGB images with the pose of the camera, in the official layout.

    SCENE/TrainSplit.txt, SCENE/TestSplit.txt      lines `sequence1`, `sequence2`, ...
    SCENE/seq-01/frame-000000.color.png            and frame-000000.pose.txt, T_w_c as 4 x 4
    SCENE/seq-01/frame-000000.depth.png            with --cameras rgbd: mm, of its own camera

A folder of frames without splits is read as one sequence: its last fifth is the test set. One
sequence is also a source of frames, `open_sequence`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.datasets.camera_files import CameraFile, find_camera, read_camera
from hydranet_ros.datasets.depth_images import DEPTH_BASELINE_M, DepthCamera, RgbdFolder
from hydranet_ros.datasets.image_folder import ImageFolder, Listed, refuse_stereo
from hydranet_ros.errors import FileError
from hydranet_ros.files import LARGEST_IMAGE_FILE, image_size, read_bytes, read_lines, read_text
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import StereoCamera
from hydranet_ros.geometry.lie import Array

Image = NDArray[np.uint8]

SCENES = ("chess", "fire", "heads", "office", "pumpkin", "redkitchen", "stairs")
SUFFIXES = (".color.png", ".color.jpg")
VALIDATION_SHARE, TEST_SHARE = 0.1, 0.2
_LARGEST_POSE = 1 << 16  # bytes of a file
# As documented for the set: a Kinect of 585 px with the centre in the middle, 30 frames a second.
KINECT = [585.0, 0.0, 320.0, 0.0, 585.0, 240.0, 0.0, 0.0, 1.0]
KINECT_SIZE = 640, 480
# The set's depth is not registered: 585 px is the depth camera's focal length. Its colour camera
# is not calibrated; this is what users of the set take it for, and where it is in a Kinect.
KINECT_COLOUR = [525.0, 0.0, 320.0, 0.0, 525.0, 240.0, 0.0, 0.0, 1.0]
KINECT_OFFSET_M = (-0.025, 0.0, 0.0)
DEPTH_HOLE = 65535
RATE_HZ = 30
_NUMBERED = re.compile(r"frame-(\d{1,9})\.color\.(?:png|jpg)")


@dataclass(eq=False)
class Frames:
    """Images and the orientations of the camera; an image is read when first used."""

    paths: list[Path]
    quaternions: Array  # (frames, 4), of C_c_w
    size: int
    _read: dict[int, Image] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def images(self, numbers: Sequence[int]) -> Image:
        """(batch, size, size, 3), RGB."""
        for i in numbers:
            if i not in self._read:
                self._read[i] = read_square(self.paths[i], self.size)
        return np.stack([self._read[i] for i in numbers])


@dataclass(frozen=True, eq=False)
class Scene:
    """Frames to learn from, to choose the epoch by, and to test on."""

    name: str
    training: Frames
    validation: Frames
    test: Frames


def read_scene(folder: Path, size: int, most: int | None = None) -> Scene:
    """Read a scene; the last tenth of each training sequence is held out for validation."""
    if not folder.is_dir():
        raise FileError(folder, "is missing: a scene of 7-Scenes is expected there")
    if (folder / "TrainSplit.txt").is_file():
        training = [_frames(path) for path in _split(folder, "TrainSplit.txt")]
        test = [_frames(path) for path in _split(folder, "TestSplit.txt")]
    else:
        whole = _frames(folder)
        cut = round((1.0 - TEST_SHARE) * len(whole))
        training, test = [whole[:cut]], [whole[cut:]]
    cuts = [round((1.0 - VALIDATION_SHARE) * len(part)) for part in training]
    learned = [path for part, cut in zip(training, cuts, strict=True) for path in part[:cut]]
    held = [path for part, cut in zip(training, cuts, strict=True) for path in part[cut:]]
    tested = [path for part in test for path in part]
    return Scene(folder.name, *(_load(part[:most], size) for part in (learned, held, tested)))


def find_scenes(dataset: Path, names: Sequence[str] = ()) -> list[Path]:
    """The folders of the scenes that are asked for, or of all; or one folder of frames."""
    if names:
        return [dataset / name for name in names]
    for folder in (dataset, dataset / "seq"):
        if folder.is_dir() and any(folder.glob("frame-*.color.*")):
            return [folder]
    present = [dataset / name for name in SCENES if (dataset / name).is_dir()]
    if not present:
        raise FileError(
            dataset / SCENES[0],
            f"is missing: --dataset names the folder with {', '.join(SCENES)}, or one of frames",
        )
    return present


def _split(scene: Path, name: str) -> list[Path]:
    """`sequence3` in a split file is the folder seq-03."""
    folders = []
    for number, line in read_lines(scene / name):
        if not line.strip():
            continue
        match = re.fullmatch(r"sequence\s*(\d+)", line.strip())
        if match is None:
            raise FileError(scene / name, f"expected 'sequenceN', got '{line.strip()}'", number)
        folders.append(scene / f"seq-{int(match[1]):02d}")
    return folders


def _frames(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileError(folder, "is missing: unpack all sequences of the scene")
    found = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))
    if not found:
        raise FileError(folder, "has no frame-NNNNNN.color.png")
    return found


def read_square(path: Path, size: int) -> Image:
    """The centre of an image, its shorter edge scaled to `size`: (size, size, 3), RGB."""
    data = read_bytes(path, LARGEST_IMAGE_FILE)
    try:
        image_size(data)
    except ValueError as error:
        raise FileError(path, str(error)) from None
    image = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise FileError(path, "cannot be read as an image: copy it again")
    scale = size / min(image.shape[:2])
    height, width = (max(size, round(n * scale)) for n in image.shape[:2])
    image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    top, left = (height - size) // 2, (width - size) // 2
    square = cv2.cvtColor(image[top : top + size, left : left + size], cv2.COLOR_BGR2RGB)
    return np.ascontiguousarray(square, dtype=np.uint8)


def _load(paths: list[Path], size: int) -> Frames:
    C_w_c = np.array([_rotation(path) for path in paths])
    return Frames(paths, lie.quaternion_from_matrix(lie.so3_inverse(C_w_c)), size)


def _rotation(image: Path) -> Array:
    """C_w_c from the pose file beside an image."""
    return _pose(_pose_file(image))[:3, :3]


def _pose_file(image: Path) -> Path:
    return _beside(image, ".pose.txt")


def _beside(image: Path, suffix: str) -> Path:
    return image.with_name(image.name.partition(".")[0] + suffix)


def _pose(path: Path) -> Array:
    """T_w_c, (4, 4)."""
    try:
        pose = np.array([float(value) for value in read_text(path, _LARGEST_POSE).split()])
    except ValueError as error:
        raise FileError(path, str(error)) from None
    if pose.shape != (16,) or not np.isfinite(pose).all():
        raise FileError(path, f"expected 16 finite numbers, got {pose.size}")
    rotation, translation = pose.reshape(4, 4)[:3, :3], pose.reshape(4, 4)[:3, 3]
    if np.abs(rotation @ rotation.T - np.eye(3)).max() > 1e-2 or np.linalg.det(rotation) < 0.0:
        raise FileError(path, "is not a rigid-body pose: its rotation is not orthonormal")
    return lie.se3_from(lie.project_to_so3(rotation), translation)


# --- a sequence as a source ----------------------------------------------------------------------


def find_sequence(folder: Path) -> Path | None:
    """The folder of frames: this one, or `seq` in it."""
    for each in (folder, folder / "seq"):
        if each.is_dir() and any(each.glob("frame-*.color.*")):
            return each
    return None


def open_sequence(
    folder: str | PathLike[str],
    poses: str | PathLike[str] | None = None,
    max_frames: int | None = None,
    cameras: str = "mono",
    camera: str | PathLike[str] | None = None,
) -> ImageFolder:
    """Read the colour images of one sequence as grey ones; and the depth of each, if "rgbd".

    The set has no stamps: frame n is at n / 30 s. A frame without a pose has no truth.
    """
    folder = find_sequence(Path(folder)) or Path(folder)
    refuse_stereo(folder, cameras)
    images = _numbered(folder)[:max_frames]
    if cameras == "rgbd":
        source = _with_depth(folder, images, camera)
    else:
        file = find_camera(folder, camera) or _kinect(folder, KINECT)
        lens = file.raw_camera()
        source = ImageFolder(folder, [(each,) for each in images], lens.camera, [(file, lens)])
    if poses is not None:
        source.set_truth(poses)
        return source
    files = [_pose_file(path) for _, path in images]
    if any(path.is_file() for path in files):
        unknown = np.full((4, 4), np.nan)
        source.T_w_c = np.array([_pose(p) if p.is_file() else unknown for p in files])
    return source


def _kinect(folder: Path, K: list[float]) -> CameraFile:
    return CameraFile(folder / "frame-000000", K, [], "plumb_bob", *KINECT_SIZE)


def _with_depth(
    folder: Path, images: list[Listed], camera: str | PathLike[str] | None
) -> ImageFolder:
    """Colour with depth. `camera` is the colour's calibration; that of the folder is of depth."""
    colour = _kinect(folder, KINECT_COLOUR) if camera is None else read_camera(camera)
    lens, depth = colour.raw_camera(), find_camera(folder, None) or _kinect(folder, KINECT)
    frames = [((stamp, path), (stamp, _beside(path, ".depth.png"))) for stamp, path in images]
    if not frames[0][1][1].is_file():
        raise FileError(frames[0][1][1], "is missing: without depth use --cameras mono")
    pair = StereoCamera(lens.camera, DEPTH_BASELINE_M)
    source = RgbdFolder(folder, frames, pair, [(colour, lens)])
    source.hole = DEPTH_HOLE
    T_colour_depth = lie.se3_from(np.eye(3), KINECT_OFFSET_M)
    source.depth_camera = DepthCamera(depth.raw_camera(), T_colour_depth, lens.camera)
    return source


def _numbered(folder: Path) -> list[Listed]:
    found: dict[int, Path] = {}
    for path in _frames(folder):
        match = _NUMBERED.fullmatch(path.name)
        if match is None:
            raise FileError(path, "expected a name like frame-000000.color.png")
        stamp = int(match[1]) * 10**9 // RATE_HZ
        if stamp in found:
            raise FileError(path, "is there twice: keep one image of each frame")
        found[stamp] = path
    return sorted(found.items())
