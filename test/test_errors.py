from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hydranet_ros import errors
from hydranet_ros.errors import BadInput, FileError, HydraNetError, printable


@pytest.mark.parametrize("path", ["a/calib.txt", Path("a/calib.txt")], ids=["str", "Path"])
@pytest.mark.parametrize(
    ("line", "message"), [(None, "a/calib.txt: no P0"), (7, "a/calib.txt:7: no P0")]
)
def test_a_file_error_names_file_line_and_reason(path, line, message):
    error = FileError(path, "no P0", line)
    assert str(error) == message
    assert isinstance(error, HydraNetError)


def test_a_file_error_survives_the_way_out_of_a_worker_process():
    error = pickle.loads(pickle.dumps(FileError(Path("a/calib.txt"), "no P0", 7)))
    assert type(error) is FileError
    assert str(error) == "a/calib.txt:7: no P0"


def test_bad_input_has_a_kind_and_says_what_is_wrong():
    for error in (given := BadInput("encoding", "not known"), pickle.loads(pickle.dumps(given))):
        assert isinstance(error, HydraNetError)
        assert (error.kind, str(error)) == ("encoding", "not known")


@pytest.mark.parametrize(
    "error",
    [
        FileError("a\x1b[2J/b\n", "no\rP0", 7),
        BadInput("topic", "/a\x1b[2J\n is \x9bnot known"),
        HydraNetError("a\0b \u202e \udcff"),
    ],
)
def test_control_characters_are_escaped(error):
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert str(each).isprintable()
    assert printable("h\u00e9llo \u4e16") == "h\u00e9llo \u4e16"
    assert printable("\x1b[0m\n") == r"\x1b[0m\n"


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    remedies = {"no_such_a": "install x", "no_such_b": "install x", "no_such_c": "install y"}
    monkeypatch.setattr(errors, "REMEDIES", {**errors.REMEDIES, **remedies})
    with pytest.raises(HydraNetError) as raised:
        errors.require("a flight", "numpy", *remedies)
    named = "no_such_a, no_such_b, no_such_c: install x; install y"
    assert str(raised.value) == f"a flight needs {named}"
    errors.require("a flight", "numpy")
