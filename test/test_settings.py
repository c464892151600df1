"""One mechanism holds every configuration to its own description."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass

import pytest

from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.gyro.flow import DisConfig, FarnebackConfig, FlowConfig
from hydranet_ros.settings import about, check, default_of
from hydranet_ros.stereo_vo.config import StereoVOConfig


@dataclass(frozen=True)
class Engine:
    power: float = field(default=1.0, metadata=about("power in kW", 0.5, 2.0))
    valves: int = field(default=4, metadata=about("valves", 1))
    loud: bool = field(default=False, metadata=about("whether it is heard"))
    fuel: str = field(default="gas", metadata=about("what it burns", choices=("gas", "oil")))
    heat: float = field(default=0.0, metadata=about("degrees", None, 90.0))

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"power": 0.4}, r"power must be a number from 0\.5 to 2, got 0\.4"),
        ({"power": float("nan")}, "power must be a number from"),
        ({"power": float("inf")}, "power must be a number from"),
        ({"power": "1"}, "power must be a number from .* got '1'"),
        ({"power": True}, "power must be a number"),
        ({"valves": 0}, "valves must be a whole number of at least 1, got 0"),
        ({"valves": 2.0}, "valves must be a whole number of at least 1, got 2.0"),
        ({"valves": True}, "valves must be a whole number"),
        ({"loud": 1}, "loud must be true or false, got 1"),
        ({"fuel": "coal"}, "fuel must be one of gas, oil, got 'coal'"),
        ({"fuel": 3}, "fuel must be a text, got 3"),
        ({"heat": 91.0}, "heat must be a number of at most 90, got 91.0"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(**wrong)


def test_right_values_pass() -> None:
    assert Engine(power=2, valves=1, loud=True, fuel="oil", heat=-300.0).power == 2


@pytest.mark.parametrize(
    "kind", [FlowConfig, DisConfig, FarnebackConfig, FusionConfig, StereoVOConfig]
)
def test_every_setting_describes_itself(kind: type) -> None:
    for item in fields(kind):
        if not is_dataclass(default_of(item)):
            assert len(item.metadata["description"]) > 5, item.name
