"""One mechanism declares, checks, reads and writes every configuration of the package."""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

import hydranet_ros
from hydranet_ros.errors import FileError, HydraNetError
from hydranet_ros.settings import (
    Configuration,
    Setting,
    check,
    complete,
    configured,
    dump,
    read_yaml,
    section,
    setting,
    to_yaml,
    update,
    walk,
)


@dataclass(frozen=True)
class Wheel(Configuration):
    radius: float = setting(0.3, "radius in metres", 0.1, 2.0)
    spokes: int = setting(8, "spokes of the wheel")


@dataclass(frozen=True)
class Engine(Configuration):
    power: float = setting(1.0, "power in kW", 0.5, 2.0)
    valves: int = setting(4, "valves of all cylinders", 1)
    loud: bool = setting(False, "whether it is heard", live=False)
    fuel: Literal["gas", "oil"] = setting("gas", "what it burns")
    heat: float = setting(0.0, "degrees", None, 90.0)
    name: str = setting("", "what it is called")
    gears: tuple[float, ...] = setting((1.0, 2.0), "ratios of the gears", 0.1)
    axis: tuple[float, float, float] = setting((0.0, 0.0, 1.0), "direction of the shaft", -1, 1)
    limit: float | None = setting(None, "fastest turn, if any", 0, 100)
    marks: Mapping[str, float] = setting({}, "marks of its tests", None)
    wheel: Wheel = section(Wheel, spokes=6)
    spare: Wheel | None = section(Wheel)

    def validate(self) -> None:
        if self.loud and self.power < 1.0:
            raise ValueError(f"loud must be false below 1 kW, got {self.power}")


def whole(message: str) -> str:
    return f"^{re.escape(message)}$"


# --- checking ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"power": 0.4}, "power must be a number from 0.5 to 2, got 0.4"),
        ({"power": math.nan}, "power must be a number from 0.5 to 2, got nan"),
        ({"power": math.inf}, "power must be a number from 0.5 to 2, got inf"),
        ({"power": "1"}, "power must be a number from 0.5 to 2, got '1'"),
        ({"power": True}, "power must be a number from 0.5 to 2, got True"),
        ({"power": None}, "power must be a number from 0.5 to 2, got None"),
        ({"valves": 0}, "valves must be a whole number of at least 1, got 0"),
        ({"valves": 2.0}, "valves must be a whole number of at least 1, got 2.0"),
        ({"valves": True}, "valves must be a whole number of at least 1, got True"),
        ({"loud": 1}, "loud must be true or false, got 1"),
        ({"fuel": "coal"}, "fuel must be one of gas, oil, got 'coal'"),
        ({"fuel": 3}, "fuel must be one of gas, oil, got 3"),
        ({"heat": 91}, "heat must be a number of at most 90, got 91"),
        ({"name": 3}, "name must be a text, got 3"),
        ({"name": b"x" * 200}, "name must be a text, got b'" + "x" * 75 + "..."),
        ({"gears": 1.0}, "gears must be a list, got 1.0"),
        ({"gears": [1.0, 0.0]}, "gears must be a number of at least 0.1, got [1.0, 0.0]"),
        ({"axis": [1.0]}, "axis must be a list of 3, got [1.0]"),
        ({"axis": (0.0, 0.0, -2.0)}, "axis must be a number from -1 to 1, got (0.0, 0.0, -2.0)"),
        ({"limit": 101.0}, "limit must be a number from 0 to 100, got 101.0"),
        ({"marks": [1]}, "marks must be a mapping of names to values, got [1]"),
        ({"marks": {"a": "b"}}, "marks must be a number, got {'a': 'b'}"),
        ({"wheel": {"spokes": 3}}, "wheel must be a Wheel, got {'spokes': 3}"),
        ({"wheel": None}, "wheel must be a Wheel, got None"),
        ({"power": 0.5, "loud": True}, "loud must be false below 1 kW, got 0.5"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=whole(message)):
        Engine(**wrong)


def test_right_values_pass_and_become_what_the_hints_say() -> None:
    engine = Engine(power=2, gears=[1, 3], axis=[0, 1, 0], heat=-300, limit=5, spare=None)  # type: ignore[arg-type]
    assert (engine.power, engine.gears, engine.axis) == (2.0, (1.0, 3.0), (0.0, 1.0, 0.0))
    assert all(type(each) is float for each in (engine.power, *engine.gears, engine.limit))
    assert engine.wheel.spokes == 6


def test_configurations_do_not_share_what_can_change() -> None:
    marks = {"noise": 1.0}
    first, second = Engine(marks=marks), Engine()
    marks["noise"] = 2.0
    assert first.marks == {"noise": 1.0}
    assert second.marks is not Engine().marks


def test_every_replacement_is_checked() -> None:
    with pytest.raises(ValueError, match="valves must be a whole number"):
        replace(Engine(), valves=0)


# --- updating ------------------------------------------------------------------------------------


def test_nested_and_dotted_keys_are_the_same() -> None:
    expected = Engine(power=1.5, wheel=Wheel(radius=1.0, spokes=6))
    assert update(Engine(), {"power": 1.5, "wheel": {"radius": 1.0}}) == expected
    assert update(Engine(), {"power": 1.5, "wheel.radius": 1.0}) == expected
    both = update(Engine(), {"wheel.radius": 1.0, "wheel": {"spokes": 3}})
    assert both.wheel == Wheel(1.0, 3)


def test_an_optional_section_may_be_left_out_and_come_back() -> None:
    without = update(Engine(), {"spare": None})
    assert without.spare is None
    assert update(without, {"spare": {"spokes": 3}}).spare == Wheel(spokes=3)
    assert update(without, {"spare.spokes": 3}).spare == Wheel(spokes=3)
    assert update(without, {"spare": Wheel(spokes=2)}).spare == Wheel(spokes=2)


def test_one_entry_of_a_mapping() -> None:
    engine = update(Engine(marks={"a": 1.0}), {"marks.b": 2.0, "marks.c": 3.0})
    assert engine.marks == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert update(engine, {"marks": {"d": 4.0}}).marks == {"d": 4.0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"valve": 3}, "valve is not known: did you mean valves?"),
        ({"wheel": {"radios": 1.0}}, "wheel.radios is not known: did you mean wheel.radius?"),
        ({"wheel.radios": 1.0}, "wheel.radios is not known: did you mean wheel.radius?"),
        ({"spare": {"radios": 1.0}}, "spare.radios is not known: did you mean spare.radius?"),
        ({"radius": 1.0}, "radius is not known: did you mean wheel.radius?"),
        ({"wheel": {"xyz": 1}}, "wheel.xyz is not known: known are radius, spokes"),
        ({"power.more": 1}, "power.more is not known: power has no parts"),
        ({"wheel": 3}, "wheel must be a mapping of names to values"),
        ({"wheel": {"radius": 3.0}}, "wheel.radius must be a number from 0.1 to 2, got 3.0"),
        ({"wheel.radius": 3.0}, "wheel.radius must be a number from 0.1 to 2, got 3.0"),
        ({"loud": True, "power": 0.5}, "loud must be false below 1 kW, got 0.5"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_section(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=whole(message)):
        update(Engine(), values)


def test_what_was_stored_must_be_complete() -> None:
    stored = dump(Engine(spare=None))
    assert complete(Engine, stored) == Engine(spare=None)
    for values, message in (
        ({key: value for key, value in stored.items() if key != "fuel"}, "Engine lacks fuel"),
        (stored | {"wheel": {"radius": 1.0}}, "Wheel lacks spokes"),
        (stored | {"valve": 3}, "valve is not known: did you mean valves?"),
        (stored | {"power": 9}, "power must be a number from 0.5 to 2, got 9"),
        ([1], r"Engine must be an object, got [1]"),
    ):
        with pytest.raises(ValueError, match=whole(message)):
            complete(Engine, values)


# --- describing ----------------------------------------------------------------------------------


def test_a_walk_gives_every_leaf_with_its_declaration() -> None:
    found = {each.name: each for each in walk(Engine)}
    assert found["wheel.spokes"].default == 6
    assert found["power"] == Setting("power", 1.0, float, "power in kW", 0.5, 2.0, True)
    assert not found["loud"].live
    assert found["fuel"].choices == ("gas", "oil")
    assert found["power"].choices == ()
    assert found["power"].range_text == " from 0.5 to 2"
    assert found["heat"].range_text == " of at most 90"
    assert found["fuel"].range_text == ""
    assert "spare.radius" in found
    assert [each.name for each in walk(Engine(spare=None)) if each.name.startswith("spare")] == []
    assert {each.name: each.default for each in walk(Engine(power=1.5))}["power"] == 1.5


# --- files ---------------------------------------------------------------------------------------


def test_a_file_then_assignments(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text("power: 1.5\nwheel: {radius: 1}\n")
    found = configured(Engine(), path, ["wheel.spokes=3", "fuel=oil", "gears=[1, 2, 3]"])
    assert found == Engine(power=1.5, fuel="oil", wheel=Wheel(1.0, 3), gears=(1.0, 2.0, 3.0))
    path.write_text("")
    assert configured(Engine(), path) == Engine()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("valve: 3", "valve is not known: did you mean valves?"),
        ("- 1", "must be a mapping of names to values"),
        ("1: 2", "must be a mapping of names to values"),
        ("a: [", "is not YAML: while parsing"),
        ("a: !!python/object:os.system {}", "is not YAML: could not determine a constructor"),
    ],
)
def test_a_bad_file_is_one_line_with_its_name(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        configured(Engine(), path)
    assert str(caught.value).startswith(f"{path}: {why}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("power", "expected NAME=VALUE"),
        ("valve=3", "valve is not known: did you mean valves?"),
        ("power=many", "power must be a number from 0.5 to 2, got 'many'"),
        ("gears=[", "while parsing"),
    ],
)
def test_a_bad_assignment_is_one_line(text: str, why: str) -> None:
    with pytest.raises(HydraNetError) as caught:
        configured(Engine(), None, [text])
    assert str(caught.value).startswith(f"--set {text}: {why}")
    assert "\n" not in str(caught.value)


def test_the_comment_heads_the_file(tmp_path: Path) -> None:
    text = to_yaml(Engine(), "hydranet 0.2\nof a test")
    assert text.startswith("# hydranet 0.2\n# of a test\npower: 1.0\n")
    (tmp_path / "a.yaml").write_text(text)
    assert update(Engine(), read_yaml(tmp_path / "a.yaml")) == Engine()


# --- every configuration of the package ----------------------------------------------------------

OPTIONAL = ("torch", "safetensors", "matplotlib", "rosbags")


@cache
def modules() -> tuple[ModuleType, ...]:
    """All modules of the package but those whose library, or ROS, is not there."""
    found = []
    for info in pkgutil.walk_packages(hydranet_ros.__path__, "hydranet_ros."):
        try:
            found.append(importlib.import_module(info.name))
        except ModuleNotFoundError as error:
            if str(error.name).startswith("hydranet_ros"):
                raise
        except HydraNetError as error:  # says which library to install
            if not any(name in str(error) for name in OPTIONAL):
                raise
    return tuple(found)


def configurations() -> list[type[Configuration]]:
    modules()
    found: list[type[Configuration]] = []
    todo = [Configuration]
    while todo:
        for kind in todo.pop().__subclasses__():
            todo.append(kind)
            if kind.__module__.startswith("hydranet_ros."):
                found.append(kind)
    return sorted(set(found), key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


def named(kinds: list[type[Configuration]]) -> Any:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


KINDS = configurations()


def test_the_known_configurations_are_found() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert {"FlowConfig", "FusionConfig", "StereoVOConfig", "StreetConfig"} <= names
    assert len(names) == len(KINDS), "two configurations have one name"


@named(KINDS)
def test_every_setting_describes_itself(kind: type[Configuration]) -> None:
    for leaf in walk(kind):
        assert len(leaf.text) > 5, leaf.name
    check(kind())


def test_everything_called_a_config_is_one() -> None:
    for module in modules():
        for name, each in vars(module).items():
            if isinstance(each, type) and name.endswith("Config") and is_dataclass(each):
                assert issubclass(each, Configuration), f"{module.__name__}.{name}"


def values_of(hint: Any, low: float | None, high: float | None) -> st.SearchStrategy[Any]:
    """Values that the hint and the bounds allow."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not type(None))
        return st.none() | values_of(inner, low, high)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0], low, high), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*(values_of(each, low, high) for each in arguments))
    if origin is not None:
        return st.just({})  # a mapping
    if hint is bool:
        return st.booleans()
    if hint is int:
        bounds = (None if each is None else int(each) for each in (low, high))
        return st.integers(*bounds)
    if hint is float:
        return st.floats(low, high, allow_nan=False, allow_infinity=False)
    return st.text(max_size=20) if hint is str else st.none()


@st.composite
def instances(draw: st.DrawFn, kind: type[Configuration]) -> Configuration:
    """A configuration with some fields changed, as far as the class allows them together."""
    hints, changes = get_type_hints(kind), {}
    for item in fields(kind):
        if not draw(st.booleans()):
            continue
        default = getattr(kind(), item.name)
        if isinstance(default, Configuration):
            changes[item.name] = draw(instances(type(default)))
        else:
            about = item.metadata
            changes[item.name] = draw(values_of(hints[item.name], about["low"], about["high"]))
    made = kind()
    for name, value in changes.items():  # one by one, since rules between fields forbid some
        with suppress(ValueError):
            made = replace(made, **{name: value})
    return made


def through_yaml(config: Configuration) -> Iterator[Configuration]:
    """What comes back, nested and with dotted keys."""
    values = yaml.safe_load(to_yaml(config, "a comment\nof two lines"))
    yield update(type(config)(), values)
    yield complete(type(config), values)
    yield update(type(config)(), {leaf.name: leaf.default for leaf in walk(config)})


@given(instances(Engine))
def test_an_engine_survives_its_file(engine: Engine) -> None:
    assert update(Engine(), dump(engine)) == engine
    nested, stored, dotted = through_yaml(engine)
    assert nested == stored == engine
    assert dotted == (engine if engine.spare is not None else replace(engine, spare=Wheel()))


@named(KINDS)
@runs(max_examples=30)
@given(st.data())
def test_every_configuration_survives_its_file(kind: type[Configuration], data: Any) -> None:
    config = data.draw(instances(kind))
    assert update(kind(), dump(config)) == config
    for found in through_yaml(config):
        assert found == config
