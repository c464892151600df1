"""The visual gyro: images in, rotations with covariances out, one frame after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import cv2
import numpy as np

from hydranet_ros.errors import BadInput, HydraNetError, require
from hydranet_ros.geometry.camera import Camera, Frame, Image, StereoCamera
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.gyro.comparison import Compared, Comparison, HostComparison
from hydranet_ros.gyro.device import check_device, choose_device, set_threads
from hydranet_ros.gyro.flow import (
    CPU,
    IN_TORCH,
    ON_DEVICE,
    FlowConfig,
    FlowMethodName,
    flow_picture,
    same_pixels,
)
from hydranet_ros.gyro.grid import CanonicalGrid, FlowInputs, GridFlow
from hydranet_ros.gyro.memory import CHECKED_AT, Memory, MemoryConfig
from hydranet_ros.gyro.persistent import PersistentConfig, added, with_persistent
from hydranet_ros.settings import Configuration, section, setting

if TYPE_CHECKING:
    from hydranet_ros.gyro.comparison import AnyPredictor

DEFAULT_WEIGHTS = Path(__file__).parents[1] / "weights" / "default.safetensors"
# torch traces at the first prediction, and optimises what it traced at the next two.
WARM_UP = 3


class GyroLost(Enum):
    """Why there is no rotation. The values are texts fit for a log or a diagnostic message."""

    FIRST_IMAGE = "initialising: the first image has nothing to be compared with"
    LONG_GAP = "long gap: the last image is too long ago to be compared with"
    REPEATED_IMAGE = "repeated image: the same bytes with a new stamp"
    NO_TEXTURE = "no texture: blank, dark, saturated, striped or out of focus"
    NO_MATCH = "no match: too little of the image is seen in the next one"


# After these the next image is compared with the same earlier one, after others with this one.
BRIDGED = frozenset({GyroLost.REPEATED_IMAGE, GyroLost.NO_TEXTURE})


@dataclass(frozen=True)
class GyroConfig(Configuration):
    """The visual gyro: which cameras, which network, where it runs."""

    cameras: Literal["mono", "stereo"] = setting(
        "mono", "one camera, or a pair: the second one tells depths", live=False
    )
    right: Literal["depth", "flow"] = setting(
        "depth",
        "of a pair, what the right image gives: depths to the memory; or its flow to the network "
        "as well, which takes half as long again and is no better on recorded drives",
        live=False,
    )
    weights: str = setting("", "file of weights; the ones that ship if empty", live=False)
    device: str = setting(
        "auto",
        "auto, numpy, or by torch cpu, cuda, cuda:N. auto: a GPU where torch has one, else the "
        "CPU, by NumPy where numba compiles it or torch is not installed",
        live=False,
    )
    half: bool = setting(False, "compute in float16, which pays on CUDA", live=False)
    threads: int = setting(
        1,
        "threads of OpenCV, BLAS and torch; more than free cores stall each other",
        1,
        256,
        live=False,
    )
    max_interval_s: float = setting(
        1.0, "images further apart than this are not compared: the gyro starts again", 1e-3
    )
    min_texture: float = setting(
        1.0, "least RMS gradient of a textured cell along its weaker direction, grey levels"
    )
    min_textured_share: float = setting(
        0.03, "share of the visible cells that must be textured", 0.0, 1.0
    )
    min_trusted_share: float = setting(
        0.15, "share of the textured cells in which flow and flow back must agree", 0.0, 1.0
    )
    doubtful_share: float = setting(
        0.4, "below this share the images must also be alike where the flow leads", 0.0, 1.0
    )
    min_correlation: float = setting(
        0.6, "least median correlation of the images along the flow, if in doubt", 0.0, 1.0
    )
    flow: FlowConfig = section(FlowConfig)
    memory: MemoryConfig = section(MemoryConfig)
    persistent: PersistentConfig = section(PersistentConfig)

    def validate(self) -> None:
        """Check what no field can tell alone."""
        if self.cameras == "stereo" and self.right == "depth" and self.memory.frames == 0:
            raise ValueError(
                "without a memory (memory.frames 0) nothing is made of the right image: set right "
                "to flow, or cameras to mono"
            )

    @property
    def both_flows(self) -> bool:
        """Whether the network sees the flow of both cameras of a pair."""
        return self.cameras == "stereo" and self.right == "flow"

    def flow_method(self, predictor: AnyPredictor) -> FlowMethodName:
        """The one that is asked for, or what the weights were trained on, where the network is."""
        if self.flow.method != "auto":
            return self.flow.method
        trained = predictor.provenance.flow
        method: FlowMethodName = "dis" if trained == "auto" else trained
        on_cpu = predictor.flow_device.partition(":")[0] == CPU
        return method if on_cpu else IN_TORCH.get(method, method)


def open_predictor(config: GyroConfig | None = None) -> AnyPredictor:
    """Open a network, by default the one that ships. torch is loaded here and not before."""
    config = config or GyroConfig()
    check_device(config.device)
    weights = Path(config.weights) if config.weights else DEFAULT_WEIGHTS
    if config.device == "numpy" or (config.device == "auto" and _numpy_is_best(config)):
        if config.half:
            raise HydraNetError("gyro.half needs torch: leave it off, or install torch")
        from hydranet_ros.gyro.predictor_numpy import NumpyPredictor

        set_threads(config.threads)
        return NumpyPredictor(weights)
    require(f"device {config.device!r}", "torch")
    from hydranet_ros.gyro.predictor import Predictor

    return Predictor(weights, config.device, half=config.half, threads=config.threads)


def _numpy_is_best(config: GyroConfig) -> bool:
    """Whether NumPy is the fastest of what is installed, or all there is."""
    if find_spec("torch") is None:
        return True
    return not config.half and find_spec("numba") is not None and choose_device("auto").type == CPU


def _predict_nothing(predictor: AnyPredictor, both_flows: bool, shape: tuple[int, int]) -> None:
    """On a grid of this shape: the first predictions take long."""
    nothing = FlowInputs(np.zeros((1, 2, *shape), dtype=np.float32))
    for _ in range(WARM_UP):
        if both_flows:
            predictor.predict_stereo(nothing, nothing)
        else:
            predictor.predict(*nothing)


@dataclass(frozen=True, eq=False)
class Sight:
    """A frame, the one before that it was compared with, what came out, or why nothing did."""

    frame: Frame
    last: Frame | None
    compared: Compared | None
    lost: GyroLost | None


class VisualGyro:
    """The rotation of a camera between its images.

    Flow is computed by the method that the weights were trained on. Images are grey uint8, all of
    one shape, rectified; the cameras of a pair have the same intrinsics. In a sequence the gyro
    remembers a reference image, see `memory`, with depths from the second camera if there is one.
    Where the network sees both flows (`right: flow`), the left camera's goes forward in time and
    the right one's backward.

        gyro = VisualGyro(Camera(718.9, 718.9, 607.2, 185.2))
        rotation = gyro.between(image_1, image_2)
    """

    def __init__(
        self,
        camera: Camera | StereoCamera,
        config: GyroConfig | None = None,
        predictor: AnyPredictor | None = None,
    ) -> None:
        self.config = config or GyroConfig()
        self.camera = camera
        self.stereo = self.config.cameras == "stereo"
        self.predictor = predictor or open_predictor(self.config)
        grid = self.predictor.config.grid
        if grid is None:
            preset = self.predictor.config.preset
            raise HydraNetError(
                f"weights of preset {preset!r} have no canonical grid: use those of 'default'"
            )
        self._grid = grid
        self._compare: tuple[FlowConfig, Comparison] | None = None  # made for these settings
        self._predicting = Lock()  # two threads may look and tell
        self._last: Frame | None = None
        self._memory = self._new_memory()
        self._chain: RelativeRotation | None = None  # of steps since the reference
        self.since_reference: RelativeRotation | None = None
        """The rotation since the reference image, beside the last one that `update` gave.

        It shares the errors of the frames between: of the two, use one.
        """
        self.lost: GyroLost | None = None
        """Why the last update gave no rotation."""
        self.flow: GridFlow | None = None
        """The last flow of the (left) camera, for pictures of it."""

    @property
    def method(self) -> FlowMethodName:
        """The flow method in use."""
        return self.config.flow_method(self.predictor)

    def picture(self, image: Image) -> Image | None:
        """The last image with the last flow drawn over it, (h, w, 3) bgr8; None without flow."""
        left = self.camera.left if isinstance(self.camera, StereoCamera) else self.camera
        return None if self.flow is None else flow_picture(image, self.flow, left)

    def reset(self) -> None:
        """Forget all that was seen: the next image has nothing to be compared with."""
        self._last, self.flow, self.since_reference = None, None, None
        self._memory, self._chain = self._new_memory(), None

    def apply(self, config: GyroConfig) -> None:
        """Go on with other settings that are live; the last image stays."""
        changed = config.memory != self.config.memory
        self.config = config
        if changed:
            self._memory = self._new_memory()

    def update(self, frame: Frame) -> RelativeRotation | None:
        """The rotation since the last usable frame; None where there is none, `lost` says why."""
        return self.tell(self.look(frame))

    def look(self, frame: Frame) -> Sight:
        """The first half of `update`: how the image has moved since the last usable frame.

        A thread may look at the next frame while another one tells of this.
        """
        if self.stereo and frame.right is None:
            raise ValueError("a stereo gyro needs both images: this frame has one")
        last, lost, compared = self._last, None, None
        if last is None:
            lost = GyroLost.FIRST_IMAGE
        elif frame.stamp_ns - last.stamp_ns > self.config.max_interval_s * 1e9:
            lost = GyroLost.LONG_GAP
        elif same_pixels(last.left, frame.left):
            lost = GyroLost.REPEATED_IMAGE
        if last is not None and lost is None:
            compared = self._compared(last, frame)
            lost = self._unusable(compared)
        elif lost is not GyroLost.REPEATED_IMAGE and not self._is_textured(frame.left):
            lost = GyroLost.NO_TEXTURE
        if lost not in BRIDGED:
            self._last = frame
        return Sight(frame, last, compared, lost)

    def tell(self, sight: Sight) -> RelativeRotation | None:
        """The second half of `update`: the rotation, by the network and the memory."""
        frame, compared = sight.frame, sight.compared
        self.lost, self.since_reference = sight.lost, None
        self.flow = None if compared is None else compared.flow
        if sight.lost is None and sight.last is not None and compared is not None:
            rotation = self._predicted(compared, sight.last, frame)
            try:
                return self._with_persistent(self._with_memory(frame, rotation))
            except Exception:  # what it has of this frame would fail with the next one, too
                self._memory = self._new_memory()
                raise
        if sight.lost not in BRIDGED:  # nothing of what was remembered is in view
            self._begin(frame)
        return None

    def between(
        self, image_1: Image, image_2: Image, stamps_ns: tuple[int, int] = (0, 1)
    ) -> RelativeRotation:
        """The rotation C_2_1 from one image to another, grey (h, w) or BGR (h, w, 3).

        With one camera; for both of a pair, or for a sequence, use `update`. A BadInput says why
        there is no rotation.
        """
        if self.stereo:
            raise ValueError("between compares images of one camera: use update for stereo frames")
        first, second = (
            Frame(stamp, _grey(image))
            for stamp, image in zip(stamps_ns, (image_1, image_2), strict=True)
        )
        compared = self._compared(first, second)
        self.flow, self.lost = compared.flow, self._unusable(compared)
        if self.lost is not None:
            raise BadInput("lost", self.lost.value)
        rotation = self._predicted(compared, first, second)
        return with_persistent(rotation, compared.flow, self.config.persistent)

    # --- steps -----------------------------------------------------------------------------------

    def _new_memory(self) -> Memory:
        stereo = self.camera if isinstance(self.camera, StereoCamera) else None
        left = self.camera if stereo is None else stereo.left
        assert isinstance(left, Camera)
        baseline = stereo.baseline_m if stereo is not None and self.stereo else None
        return Memory(left, self.config.memory, baseline)

    def _begin(self, frame: Frame) -> None:
        if self.config.memory.frames > 0:
            self._memory.begin(frame.left, frame.stamp_ns, frame.right if self.stereo else None)

    def _with_memory(self, frame: Frame, rotation: RelativeRotation) -> RelativeRotation:
        """What the memory makes of the network's rotation."""
        if self.flow is None or self.config.memory.frames == 0:
            return rotation
        right = frame.right if self.stereo else None
        found = self._memory.update(frame.left, self.flow, rotation, right)
        if found is None:
            return rotation
        self.since_reference = found.reference
        return found.frame

    def _with_persistent(self, rotation: RelativeRotation) -> RelativeRotation:
        """With the errors that the next ones share, also in the rotation since the reference."""
        if self.flow is None:
            return rotation
        rotation = with_persistent(rotation, self.flow, self.config.persistent)
        if self.since_reference is not None:
            start = self.since_reference.stamp_1_ns
            if self._chain is not None and self._chain.stamp_1_ns == start < rotation.stamp_1_ns:
                self._chain = self._chain.then(rotation)
            else:
                self._chain = rotation
            assert self._chain.persistent is not None
            self.since_reference = added(self.since_reference, self._chain.persistent)
        return rotation

    def _compared(self, first: Frame, second: Frame) -> Compared:
        height, width = second.left.shape
        return self._comparison((height, width))(first, second, self.config.min_texture)

    def _predicted(self, compared: Compared, first: Frame, second: Frame) -> RelativeRotation:
        with self._predicting:
            prediction = compared.prediction()
        (rotation,) = prediction.rotations([(first.stamp_ns, second.stamp_ns)])
        return rotation

    def _unusable(self, found: Compared) -> GyroLost | None:
        """Why nothing can be said of two images, if so."""
        if found.textured < self.config.min_textured_share:
            return GyroLost.NO_TEXTURE
        if found.known < self.config.min_trusted_share:
            return GyroLost.NO_MATCH
        doubtful = found.known < self.config.doubtful_share
        if doubtful and found.alike() < self.config.min_correlation:
            return GyroLost.NO_MATCH
        return None

    def _is_textured(self, image: Image) -> bool:
        height, width = image.shape
        share = self._comparison((height, width)).textured(image, self.config.min_texture)
        return share >= self.config.min_textured_share

    def _comparison(self, image_shape: tuple[int, int]) -> Comparison:
        flow, made = self.config.flow, self._compare  # others may arrive in a thread meanwhile
        if made is not None and made[0] == flow and made[1].image_shape == image_shape:
            return made[1]
        left = self.camera.left if isinstance(self.camera, StereoCamera) else self.camera
        grid = self._grid.covering(left, image_shape)
        compare = self._new_comparison(left, image_shape, grid)
        self._compare = flow, compare
        with self._predicting:
            _predict_nothing(self.predictor, self.config.both_flows, (grid.rows, grid.columns))
        return compare

    def _new_comparison(
        self, left: Camera, image_shape: tuple[int, int], grid: CanonicalGrid
    ) -> Comparison:
        flow, both = replace(self.config.flow, method=self.method), self.config.both_flows
        if self.method not in ON_DEVICE:
            return HostComparison(left, image_shape, flow, grid, self.predictor, both)
        require(f"flow method {self.method}", "torch")
        from hydranet_ros.gyro.comparison_torch import DeviceComparison
        from hydranet_ros.gyro.predictor import Predictor

        if not isinstance(self.predictor, Predictor):
            raise HydraNetError(
                f"flow method {self.method} goes with a network in torch: use device 'cpu' or "
                "'cuda', or flow method 'dis'"
            )
        return DeviceComparison(left, image_shape, flow, grid, self.predictor, both)


def _grey(image: Image) -> Image:
    if image.ndim == 2:
        return image
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), dtype=np.uint8)


def open_warm(config: GyroConfig) -> AnyPredictor:
    """A network that has seen some frames of noise: what is compiled takes long at first."""
    predictor = open_predictor(config)
    camera = StereoCamera(Camera(250.0, 250.0, 160.0, 120.0), 0.2)
    gyro = VisualGyro(camera if config.cameras == "stereo" else camera.left, config, predictor)
    noise = np.random.default_rng(0).integers(0, 256, (60, 80), dtype=np.uint8)
    image = np.kron(noise, np.ones((4, 4), dtype=np.uint8))
    for k in range(CHECKED_AT[0] + 1):
        left = np.roll(image, k, axis=1)
        gyro.update(Frame(100_000_000 * k, left, np.roll(left, -6, axis=1)))
    return predictor


def describe(gyro: VisualGyro) -> dict[str, Any]:
    """What the estimates depend on besides the configuration, as plain values."""
    provenance = gyro.predictor.provenance
    return {
        "flow": gyro.method,
        "preset": gyro.predictor.config.preset,
        "command": provenance.command,
        "seed": provenance.seed,
    }
