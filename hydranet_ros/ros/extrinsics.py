"""Where the camera sits on the robot: by parameter, or from TF.

Outputs are REP 103: `odom_frame` is where `base_frame` was at the start, x forward, z up. What is
not known is an error, never the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from geometry_msgs.msg import Pose, PoseWithCovarianceStamped
from rclpy.time import Time

from hydranet_ros.errors import BadInput, HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.estimates import change_frame
from hydranet_ros.geometry.lie import Array
from hydranet_ros.ros.conversions import pose_estimate, pose_matrix
from hydranet_ros.ros.lifecycle import ManagedNode
from hydranet_ros.settings import Configuration, setting

try:
    import tf2_ros
except ImportError:  # not with the wheels
    tf2_ros = None

# T_BASE_OPTICAL as a parameter, x y z qx qy qz qw: a camera that looks forward.
LOOKING_FORWARD = (0.0, 0.0, 0.0, -0.5, 0.5, -0.5, 0.5)

# So many messages in a row with another frame_id are of another camera.
NAME_CONFIRMED = 3


@dataclass(frozen=True)
class FramesConfig(Configuration):
    """Names of frames, and how the camera is mounted."""

    odom_frame: str = setting("odom", "frame of the odometry", live=False)
    base_frame: str = setting("base_link", "frame that moves in it", live=False)
    prefix: str = setting("", "put before both names: robot1/ for robot1/odom", live=False)
    extrinsics: Literal["parameter", "tf"] = setting(
        "parameter", "where base_from_camera is from; tf needs tf2_ros", live=False
    )
    base_from_camera: tuple[float, ...] = setting(
        LOOKING_FORWARD,
        "pose of the camera's optical frame in base_frame, x y z qx qy qz qw",
        None,
        live=False,
    )

    def validate(self) -> None:
        """Check what no field can tell alone."""
        numbers = np.array(self.base_from_camera, dtype=np.float64)
        if numbers.shape != (7,) or not np.isfinite(numbers).all():
            raise ValueError("base_from_camera must be seven numbers, x y z qx qy qz qw")
        if abs(float(np.linalg.norm(numbers[3:])) - 1.0) > 1e-3:
            raise ValueError("base_from_camera must end in a quaternion qx qy qz qw of length 1")

    @property
    def odom(self) -> str:
        """The odom frame's full name."""
        return self.prefix + self.odom_frame

    @property
    def base(self) -> str:
        """The base frame's full name."""
        return self.prefix + self.base_frame

    @property
    def T_b_c(self) -> Array:
        """As the parameter says."""
        return pose_of_numbers(self.base_from_camera)


def pose_of_numbers(values: Sequence[float]) -> Array:
    """A pose as parameters have it, x y z qx qy qz qw."""
    x, y, z, w = values[3:]
    return lie.se3_from(lie.quaternion_to_matrix([w, x, y, z]), values[:3])


class SteadyName:
    """The frame_id of a camera: a lone other one is a wrong message, not another mounting."""

    def __init__(self) -> None:
        self.name = ""
        self.clear()

    def clear(self) -> None:
        """Any name may come next; until then it is the last one."""
        self._steady, self._other, self._count = False, "", 0

    def take(self, name: str) -> str:
        """The name, a BadInput where it is another than before; after some in a row it is new."""
        if name != self.name and self._steady:
            self._count = self._count + 1 if name == self._other else 1
            self._other = name
            if self._count < NAME_CONFIRMED:
                raise BadInput(
                    "frames", f"frame_id {name[:50]!r} instead of {self.name!r}: not used"
                )
        self.name, self._steady, self._count = name, bool(name), 0
        return name


class Extrinsics:
    """T_b_c of any frame b that the camera is fixed to."""

    def __init__(self, node: ManagedNode[Any], config: FramesConfig) -> None:
        self._config, self._node, self._assumed = config, node, False
        self._known: dict[tuple[str, str], Array] = {}
        self._buffer: Any = None
        if config.extrinsics == "tf":
            if tf2_ros is None:
                raise HydraNetError(
                    "parameter frames.extrinsics is 'tf' and tf2_ros is not installed: install "
                    "it, or use 'parameter' with frames.base_from_camera"
                )
            self._buffer = tf2_ros.Buffer()
            # The node would keep the listener, and every one before it.
            node.when_closed(tf2_ros.TransformListener(self._buffer, node).unregister)

    def camera_in(self, base: str, camera: str) -> Array:
        """T_b_c; a BadInput where it is not known."""
        if not base:
            raise BadInput(
                "frames", f"odometry has no child_frame_id: set it, say to {self._config.base!r}"
            )
        if base == camera:
            return np.eye(4)
        if self._buffer is not None:
            return self._looked_up(base, camera)
        if base != self._config.base:
            also = f" nor the camera's {camera!r}" if camera else ""
            raise BadInput(
                "frames",
                f"frame {base!r} is not frames.base_frame {self._config.base!r}{also}: name it in "
                "frames.base_frame, or use frames.extrinsics tf",
            )
        if self._config.base_from_camera == LOOKING_FORWARD and not self._assumed:
            self._assumed = True
            self._node.get_logger().info(
                f"the camera is taken to be at {base!r} and to look forward: if not so, set "
                "frames.base_from_camera, or frames.extrinsics tf"
            )
        return self._config.T_b_c

    def depth_in(self, image: str, depth: str, given: Sequence[float]) -> Array:
        """T_image_depth of two optical frames: from TF, or as given, where that has a rotation."""
        if self._buffer is not None:
            return self._looked_up(image, depth)
        if not any(given[3:]):
            raise BadInput(
                "frames",
                f"where depth of {depth!r} is from the image of {image!r} is not known: set "
                "rgbd.image_from_depth, use frames.extrinsics tf, or register depth",
            )
        return pose_of_numbers(given)

    def of(self, camera: Callable[[], str]) -> Callable[[str], Array]:
        """T_b_c by the frame b, of the camera whose name is known then."""
        return lambda base: self.camera_in(base, camera())

    def camera_pose(self, message: PoseWithCovarianceStamped, camera: str) -> tuple[Array, Array]:
        """T_w_c and Sigma_c_w from a pose of the base in the odom frame; a BadInput if unfit."""
        if message.header.frame_id not in ("", self._config.odom):
            raise BadInput(
                "set_pose",
                f"a pose in frame {message.header.frame_id!r} cannot be set: give it in "
                f"{self._config.odom!r}",
            )
        T_c_b = lie.se3_inverse(self.camera_in(self._config.base, camera))
        return change_frame(T_c_b, *pose_estimate(message))

    def _looked_up(self, base: str, camera: str) -> Array:
        """Once found it is kept: the mounting is rigid."""
        if not camera:
            raise BadInput(
                "frames",
                "the camera's frame is not known for frames.extrinsics tf: no image or rotation "
                "with a frame_id has come",
            )
        if (base, camera) not in self._known:
            try:
                found = self._buffer.lookup_transform(base, camera, Time()).transform
            except tf2_ros.TransformException as error:
                raise BadInput("tf", f"TF does not know {camera} in {base}: {error}") from None
            pose = Pose(orientation=found.rotation)
            p, t = pose.position, found.translation
            p.x, p.y, p.z = t.x, t.y, t.z
            self._known[base, camera] = pose_matrix(pose)
        return self._known[base, camera]
