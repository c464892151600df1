"""Images in, rotations with covariances out: flow and HydraNet, one frame after the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry.camera import Camera
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.gyro.flow import FlowConfig, FlowEstimator
from hydranet_ros.gyro.grid import GridFlow

if TYPE_CHECKING:
    from hydranet_ros.gyro.predictor import Predictor

Image = NDArray[np.uint8]

DEFAULT_WEIGHTS = Path(__file__).parents[1] / "weights" / "default.safetensors"


def open_predictor(
    weights: Path | None = None, device: str = "auto", threads: int = 1, **options: Any
) -> Predictor:
    """A network, by default the one that ships; torch is loaded here and not before.

    One thread of torch is fastest for one frame at a time: the products are small.
    """
    try:
        from hydranet_ros.gyro.predictor import Predictor
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise HydraNetError(
            f"rotations from images need {error.name}: pip install torch safetensors"
        ) from None
    return Predictor(weights or DEFAULT_WEIGHTS, device, threads=threads, **options)


class VisualGyro:
    """The rotation of a camera between its images; with two cameras, one estimate from both.

    Of a pair, the left camera's flow goes forward in time and the right one's backward.

    Flow is computed by the method that the weights were trained on. Images are grey uint8, all of
    one shape, rectified; the cameras of a pair have the same intrinsics.
    """

    def __init__(
        self,
        predictor: Predictor,
        camera: Camera,
        image_shape: tuple[int, int],
        stereo: bool = False,
        flow: FlowConfig | None = None,
    ) -> None:
        self.predictor, self.camera = predictor, camera
        self.image_shape, self.stereo = image_shape, stereo
        config = flow or FlowConfig(method=predictor.weights.flow_method)
        grid = predictor.model.config.grid
        if grid is None:
            raise HydraNetError(
                f"weights of preset {predictor.model.config.preset!r} have no canonical grid: "
                "use weights of preset 'default'"
            )
        device = str(predictor.device) if config.method == "farneback_torch" else "cpu"
        self._flows = [
            FlowEstimator(camera, image_shape, config, grid, device) for _ in range(1 + stereo)
        ]
        self._last: tuple[int, Image, Image | None] | None = None
        self.flow: GridFlow | None = None
        """The last flow of the (left) camera, for pictures of it."""

    @property
    def method(self) -> str:
        """The flow method in use."""
        return self._flows[0].method

    def settings(self) -> dict[str, Any]:
        """What the estimates depend on, as plain values."""
        provenance = self.predictor.weights.provenance
        return {
            "cameras": "stereo" if self.stereo else "mono",
            "flow": self.method,
            "weights": {
                "preset": self.predictor.model.config.preset,
                "command": provenance.command,
                "seed": provenance.seed,
            },
        }

    def reset(self) -> None:
        """Forget the last image: the next one begins anew."""
        self._last, self.flow = None, None

    def update(
        self, stamp_ns: int, image: Image, right: Image | None = None
    ) -> RelativeRotation | None:
        """The rotation since the last image; None for the first one."""
        if self.stereo and right is None:
            raise ValueError("a stereo gyro needs both images")
        last, self._last = self._last, (stamp_ns, image, right)
        if last is None:
            return None
        flows = [self._flows[0](last[1], image)]
        if right is not None and last[2] is not None and self.stereo:
            flows.append(self._flows[1](right, last[2]))
        self.flow = flows[0]
        inputs = [_network_inputs(each) for each in flows]
        if self.stereo:
            found = self.predictor.predict_stereo(inputs[0], inputs[1])
        else:
            found = self.predictor.predict(*inputs[0])
        (rotation,) = found.rotations([(last[0], stamp_ns)])
        return rotation


def _network_inputs(
    each: GridFlow,
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_] | None]:
    trusted = None if each.trusted is None else each.trusted[None]
    return each.flow[None], each.mask[None], trusted
