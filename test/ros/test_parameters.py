"""Parameters are the configuration: described, bounded, checked, and never half set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here: neither sourced nor from wheels")

import rclpy
from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

from hydranet_ros.errors import HydraNetError
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.gyro.visual_gyro import GyroConfig
from hydranet_ros.ros.fusion_node import FusionNodeConfig
from hydranet_ros.ros.hydranet_all import AllConfig
from hydranet_ros.ros.hydranet_node import HydraNetNodeConfig
from hydranet_ros.ros.parameters import SECTIONS, Parameters
from hydranet_ros.ros.stereo_vo_node import StereoVONodeConfig
from hydranet_ros.settings import Configuration, section, setting, walk
from hydranet_ros.stereo_vo.config import StereoVOConfig


@dataclass(frozen=True)
class Wheel(Configuration):
    radius: float = setting(0.3, "radius in m", 0.1, 1.0)


@dataclass(frozen=True)
class Car(Configuration):
    wheel: Wheel = section(Wheel)
    seats: int = setting(4, "seats", 1, 9)
    doors: int = setting(2, "doors", 1, 9)
    colour: Literal["red", "blue"] = setting("red", "paint")
    number: str = setting("A1", "number plate", live=False)
    mass: tuple[float, ...] = setting((1.0, 2.0), "front, rear")

    def validate(self) -> None:
        if self.doors > self.seats:
            raise ValueError(f"doors must not be more than the {self.seats} seats")


@pytest.fixture(scope="module")
def context() -> Iterator[None]:
    rclpy.init()
    yield
    rclpy.shutdown()


def car(
    parked: list[bool] | None = None, **overrides: object
) -> tuple[Node, Parameters[Car], list[Car]]:
    given = [Parameter(name.replace("__", "."), value=v) for name, v in overrides.items()]
    node = rclpy.create_node("car", parameter_overrides=given)
    told: list[Car] = []
    return node, Parameters(node, Car, told.append, lambda: not parked), told


@pytest.mark.usefixtures("context")
class TestOnANode:
    def test_fields_become_parameters_with_their_texts_and_bounds(self) -> None:
        node, parameters, _ = car(wheel__radius=0.5, mass=[3.0, 4.0])
        assert parameters.config == Car(Wheel(0.5), mass=(3.0, 4.0))
        described = node.describe_parameter("wheel.radius")
        assert described.description == "radius in m"
        span = described.floating_point_range[0]
        assert (span.from_value, span.to_value) == (0.1, 1.0)
        assert node.describe_parameter("seats").integer_range[0].to_value == 9
        assert node.describe_parameter("colour").additional_constraints == "one of red, blue"
        described = node.describe_parameter("number")
        assert described.additional_constraints == "only while the node is unconfigured"
        assert not described.read_only  # rclpy would never let it go
        node.destroy_node()

    def test_setting_rebuilds_the_configuration(self) -> None:
        node, parameters, told = car()
        (result,) = node.set_parameters([Parameter("wheel.radius", value=0.4)])
        assert result.successful
        assert parameters.config == Car(Wheel(0.4)) == told[-1]
        node.destroy_node()

    @pytest.mark.parametrize(
        ("name", "value", "reason"),
        [
            ("wheel.radius", 2.0, "radius"),
            ("seats", 0, "seats"),
            ("doors", 5, "doors must not be more than the 4 seats"),
            ("colour", "green", "colour must be one of red, blue, got 'green'"),
            (
                "number",
                "B2",
                "number can be set only while the node is unconfigured",
            ),
        ],
    )
    def test_a_wrong_value_is_refused_and_nothing_changes(
        self, name: str, value: object, reason: str
    ) -> None:
        node, parameters, told = car()
        (result,) = node.set_parameters([Parameter(name, value=value)])
        assert not result.successful
        assert reason in result.reason
        assert parameters.config == Car()
        assert not told
        node.destroy_node()

    def test_what_another_callback_refuses_is_not_applied(self) -> None:
        """rclpy asks every on-set callback first: ours must not have changed anything by then."""
        node, parameters, told = car()
        node.add_on_set_parameters_callback(lambda _: SetParametersResult(successful=False))
        (result,) = node.set_parameters([Parameter("seats", value=6)])
        assert not result.successful
        assert parameters.config == Car()
        assert not told
        node.destroy_node()

    def test_several_are_set_together_or_not_at_all(self) -> None:
        node, parameters, _ = car()
        both = [Parameter("seats", value=6), Parameter("doors", value=5)]
        assert node.set_parameters_atomically(both).successful
        assert (parameters.config.seats, parameters.config.doors) == (6, 5)
        node.destroy_node()

    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ({"colour": "green"}, "parameter colour must be one of red, blue"),
            ({"doors": 9}, "parameter doors must not be more"),
            ({"wheel__radius": 7.0}, "parameter wheel.radius"),
            ({"seats": "four"}, "parameter seats must be a whole number"),
            ({"seats": 4.0}, "parameter seats must be a whole number"),
            ({"wheel__radus": 0.3}, r"wheel.radus is not known: did you mean wheel.radius\?"),
            ({"radius": 0.3}, r"radius is not known: did you mean wheel.radius\?"),
            ({"weel__radius": 0.3}, r"weel.radius is not known: did you mean wheel.radius\?"),
            ({"seats__front": 2}, "seats.front is not known: seats has no parts"),
            ({"sound": True}, "sound is not known: known are colour, doors"),
        ],
    )
    def test_a_wrong_start_value_is_one_line(self, wrong: dict[str, object], text: str) -> None:
        with pytest.raises(HydraNetError, match=text) as raised:
            car(**wrong)
        assert "\n" not in str(raised.value)

    def test_what_rclpy_knows_is_known(self) -> None:
        given = {"use_sim_time": True, "start_type_description_service": False}
        node, parameters, _ = car(**given, **{"qos_overrides./clock.subscription.depth": 5})
        assert parameters.config == Car()
        node.destroy_node()

    def test_what_another_node_has_is_warned_about(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """A section /** of a file is for all nodes."""
        node, parameters, _ = car(frames__base_frame="chassis")
        assert parameters.config == Car()
        assert "parameter frames.base_frame is of another node" in capfd.readouterr().err
        node.destroy_node()

    def test_whole_numbers_do_for_floats(self) -> None:
        node, parameters, _ = car(wheel__radius=1, mass=[3, 4])
        assert parameters.config == Car(Wheel(1.0), mass=(3.0, 4.0))
        assert node.get_parameter("wheel.radius").type_ == Parameter.Type.DOUBLE
        assert node.get_parameter("mass").type_ == Parameter.Type.DOUBLE_ARRAY
        node.destroy_node()

    @pytest.mark.parametrize("given", [1, "1", "1e0"])
    def test_numbers_that_are_set_may_be_written_in_any_way(self, given: int | str) -> None:
        node, parameters, _ = car()
        (result,) = node.set_parameters([Parameter("wheel.radius", value=given)])
        assert result.successful, result.reason
        assert parameters.config.wheel.radius == 1.0
        assert node.get_parameter("wheel.radius").type_ == Parameter.Type.DOUBLE
        (result,) = node.set_parameters([Parameter("wheel.radius", value="round")])
        assert not result.successful
        node.destroy_node()

    def test_what_is_not_live_is_set_while_it_is_not_in_use(self) -> None:
        parked = [True]
        node, parameters, told = car(parked)
        (result,) = node.set_parameters([Parameter("number", value="B2")])
        assert result.successful
        assert parameters.config.number == told[-1].number == "B2"
        parked.clear()
        (result,) = node.set_parameters([Parameter("number", value="C3")])
        assert not result.successful
        # As of `ros2 param load` with what is set already.
        (result,) = node.set_parameters([Parameter("number", value="B2")])
        assert result.successful
        node.destroy_node()


def test_the_sections_of_the_nodes_are_known_to_one_another() -> None:
    kinds = FusionNodeConfig, HydraNetNodeConfig, StereoVONodeConfig, AllConfig
    assert {item.name for kind in kinds for item in fields(kind)} == SECTIONS


def test_the_nodes_have_the_defaults_of_the_core() -> None:
    assert FusionNodeConfig().fusion == FusionConfig()
    assert HydraNetNodeConfig().gyro == GyroConfig()
    assert StereoVONodeConfig().vo == StereoVOConfig()


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (FusionNodeConfig, "vo.covariance", "odometry.covariance"),
        (FusionNodeConfig, "rotation.depth", "input.depth"),
        (FusionNodeConfig, "max_wait_s", "fusion.max_wait_s"),
        (HydraNetNodeConfig, "flow.method", "gyro.flow.method"),
        (HydraNetNodeConfig, "rectified", "input.rectified"),
        (StereoVONodeConfig, "input.max_interval_s", "gyro.max_interval_s, or vo.max_interval_s"),
    ],
)
def test_a_parameter_of_version_0_1_fails_with_the_new_one(
    kind: type[Configuration], old: str, new: str
) -> None:
    node = rclpy.create_node("old", parameter_overrides=[Parameter(old, value="x")])
    with pytest.raises(HydraNetError, match=f"parameter {old} is not known: it is {new}"):
        Parameters(node, kind)
    node.destroy_node()
    assert new.partition(",")[0] in {item.name for item in walk(kind)} or "," in new
