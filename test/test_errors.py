from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hydranet_ros.errors import BadInput, FileError, HydraNetError


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
