"""Damaged files of every kind: exit code 0 with finite results, or 2 with one line on stderr.

The short part takes a few of each kind, `-m slow` more than 300.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("rosbags")

from command_line import exit_code
from faults.damaged_files import BINARY, TEXT, Mutation, Valid, finite, recording, tum_text

LONGEST_S = 20.0


class Hang(BaseException):
    """A command that takes too long; no command catches it."""


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Kind:
    """A kind of file: how one is damaged, and the command that reads it."""

    mutations: tuple[Mutation, ...]
    file: Callable[[Valid], Path]
    command: Callable[[Valid, Path], list[str]]
    json: bool = True


def only_vo(source: Path) -> list[str]:
    return ["run", str(source), "--only", "vo", "--json"]


def in_kitti(name: str) -> Callable[[Valid], Path]:
    return lambda valid: valid.kitti / name


def run_kitti(valid: Valid, file: Path) -> list[str]:
    return only_vo(valid.kitti)


def storage_file(storage: str, compressed: bool, name: str) -> Callable[[Valid], Path]:
    return lambda valid: next(valid.bag(storage, compressed).glob(name))


KINDS = {
    "calib.txt": Kind(TEXT, in_kitti("calib.txt"), run_kitti),
    "times.txt": Kind(TEXT, in_kitti("times.txt"), run_kitti),
    "poses.txt": Kind(TEXT, in_kitti("poses.txt"), run_kitti),
    "png": Kind(BINARY, in_kitti("image_1/000001.png"), run_kitti),
    "jpg": Kind(BINARY, lambda v: v.jpeg / "image_0" / "000001.jpg", lambda v, f: only_vo(v.jpeg)),
    "tum": Kind(
        TEXT,
        lambda v: v.text("estimate.tum", tum_text()),
        lambda v, f: ["evaluate", str(f), str(v.text("truth.tum", tum_text())), "--json"],
    ),
    "recording": Kind(
        BINARY,
        lambda v: recording(v.folder / "recording.npz"),
        lambda v, f: ["fuse", str(f), "--json"],
    ),
    "npz": Kind(
        BINARY,
        lambda v: recording(v.folder / "poses.npz"),
        lambda v, f: [
            *("evaluate", f"{f}:T_w_c_vo", f"{f}:T_w_c_gt_oxts"),
            *("--covariance", f"{f}:Sigma_21_vo", "--json"),
        ],
    ),
    "weights": Kind(
        BINARY,
        Valid.weights,
        lambda v, f: ["run", str(v.kitti), "--only", "rotation", "--weights", str(f), "--json"],
    ),
    "weights header": Kind(
        TEXT,
        Valid.weights,
        lambda v, f: ["run", str(v.kitti), "--only", "rotation", "--weights", str(f), "--json"],
    ),
    "training.yaml": Kind(
        TEXT, Valid.training, lambda v, f: ["train", "--config", str(f), "--dump-config"], False
    ),
    "settings.yaml": Kind(
        TEXT, Valid.settings, lambda v, f: ["run", str(v.kitti), "--config", str(f), "--json"]
    ),
    "mcap": Kind(BINARY, storage_file("mcap", False, "*.mcap"), lambda v, f: only_vo(f.parent)),
    "compressed mcap": Kind(BINARY, storage_file("mcap", True, "*.mcap"), lambda v, f: only_vo(f)),
    "sqlite": Kind(BINARY, storage_file("sqlite3", False, "*.db3"), lambda v, f: only_vo(f)),
    "metadata.yaml": Kind(
        TEXT, storage_file("sqlite3", True, "metadata.yaml"), lambda v, f: only_vo(f.parent)
    ),
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Valid:
    return Valid(tmp_path_factory.mktemp("valid"))


def damaged(kind: Kind, path: Path, good: bytes, rng: random.Random) -> None:
    mutate = rng.choice(kind.mutations)
    header = int.from_bytes(good[:8], "little")
    if path.suffix == ".safetensors" and kind.mutations is TEXT:  # only what is text
        text = mutate(good[8 : 8 + header], rng)
        path.write_bytes(len(text).to_bytes(8, "little") + text + good[8 + header :])
    else:
        path.write_bytes(mutate(good, rng))


def outcome(arguments: list[str], as_json: bool, capsys: pytest.CaptureFixture[str]) -> int:
    with in_time(LONGEST_S):
        code = exit_code(*arguments)
    out, err = capsys.readouterr()
    if code == 0:
        if as_json:
            finite(out)
        return code
    assert code == 2, f"exit code {code}: {err}"
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    assert err[:-1].isprintable(), err
    assert not out
    return code


def damage_many(
    valid: Valid, name: str, count: int, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, rng = KINDS[name], random.Random(f"{name} {seed}")
    path = kind.file(valid)
    good, slowest, codes = path.read_bytes(), 0.0, []
    assert outcome(kind.command(valid, path), kind.json, capsys) == 0
    try:
        for number in range(count):
            damaged(kind, path, good, rng)
            start = time.perf_counter()
            try:
                codes.append(outcome(kind.command(valid, path), kind.json, capsys))
            except BaseException:
                kept = valid.folder.parent / f"damaged_{name.replace(' ', '_')}_{number}"
                shutil.copy(path, kept)
                with capsys.disabled():
                    print(f"\n{name}: see {kept}")
                raise
            slowest = max(slowest, time.perf_counter() - start)
    finally:
        path.write_bytes(good)
    with capsys.disabled():
        accepted, refused = codes.count(0), codes.count(2)
        print(
            f"\n{name:<16} tried {count:>3}, accepted {accepted:>3}, refused {refused:>3}, "
            f"crashed 0, slowest {slowest:.1f} s",
            end="",
        )


@pytest.mark.parametrize("name", KINDS)
def test_a_few_damaged_files(valid: Valid, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage_many(valid, name, 4, 0, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_many_damaged_files(valid: Valid, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage_many(valid, name, 25, 1, capsys)
