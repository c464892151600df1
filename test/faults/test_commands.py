"""Signals, pipes, full disks and strange names: every command ends in order, with one line."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("rosbags")

from command_line import exit_code
from faults.damaged_files import BINARY, TRAINING, bag, kitti_folder, recording, tum_text

COMMAND = [sys.executable, "-m", "hydranet_ros.cli"]
BOM = "\ufeff"


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that ends with code 2."""
    assert exit_code(*map(str, arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    return err


def group_members(group: int) -> list[str]:
    found = subprocess.run(
        ["ps", "-o", "pid=,stat=,args=", "-g", str(group)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = found.stdout.splitlines()
    return [line for line in lines if line.split()[1][0] != "Z"]


# --- signals -------------------------------------------------------------------------------------


def rendering(out: Path, cache: Path) -> subprocess.Popen[str]:
    """A training that has rendered its first street."""
    data = {"data": {"streets": 60, "frames_per_street": 6, "validation_streets": 1}}
    config = out.parent / "config.yaml"
    config.write_text(yaml.safe_dump(data))
    command = [*COMMAND, "train", "--config", str(config), "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--cache", str(cache)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 90
    while not list(cache.rglob("rendered-*.npz")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [
        (signal.SIGINT, True),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.slow),
    ],
    ids=["Ctrl-C", "SIGTERM", "SIGKILL"],
)
def test_a_training_that_is_ended_leaves_no_process_and_no_half_file(
    tmp_path: Path, number: signal.Signals, whole_group: bool
) -> None:
    process = rendering(tmp_path / "out", tmp_path / "cache")
    try:
        start = time.monotonic()
        (os.killpg if whole_group else os.kill)(process.pid, number)
        _, err = process.communicate(timeout=30)
        seconds = time.monotonic() - start
        until = time.monotonic() + 3.0
        while group_members(process.pid) and time.monotonic() < until:
            time.sleep(0.05)
        assert group_members(process.pid) == []
    finally:
        for line in group_members(process.pid):
            os.kill(int(line.split()[0]), signal.SIGKILL)
    assert seconds < 3.0
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert err == "hydranet train: interrupted\n"
        assert not list((tmp_path / "cache").rglob(".*"))
    # What was done is kept.
    assert list((tmp_path / "cache").rglob("rendered-*.npz"))


def long_folder(folder: Path, frames: int = 10_000) -> Path:
    """Three images, over and over: minutes of work."""
    kitti_folder(folder)
    (folder / "poses.txt").unlink()
    for side in (0, 1):
        for i in range(3, frames):
            link = folder / f"image_{side}" / f"{i:06d}.png"
            link.symlink_to(link.with_name(f"{i % 3:06d}.png"))
    (folder / "times.txt").write_text("".join(f"{0.1 * i:.6e}\n" for i in range(frames)))
    return folder


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What numba compiles takes seconds for the first time, and is kept in files."""
    source = kitti_folder(tmp_path_factory.mktemp("compiled") / "source")
    subprocess.run([*COMMAND, "run", str(source), "--only", "vo"], check=True)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_run_that_is_ended_keeps_its_results(tmp_path: Path, number: signal.Signals) -> None:
    out, source = tmp_path / "out", long_folder(tmp_path / "long")
    process = subprocess.Popen(
        [*COMMAND, "run", str(source), "--only", "vo", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not out.exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(4.0)
    start = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - start < 3.0
    assert process.returncode == 130
    assert err == "hydranet run: interrupted\n"
    assert {path.name for path in out.iterdir()} >= {"vo.txt", "metrics.json", "config.yaml"}
    assert not list(out.glob(".*"))


@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint", b"PK\x03\x04" + bytes(100)], ids=["empty", "text", "zip"]
)
def test_a_damaged_checkpoint_is_named_with_the_remedy(
    tmp_path: Path, content: bytes, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(trained / "out", out)
    (out / "checkpoint.pt").write_bytes(content)
    line = refused(capsys, *training(trained, out))
    assert "checkpoint.pt: is damaged" in line
    assert "delete it to start again; rendered streets are kept" in line


def test_checkpoints_with_flipped_bits(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(0)
    good = (trained / "out" / "checkpoint.pt").read_bytes()
    shutil.copytree(trained / "out", tmp_path / "out")
    for mutate in BINARY:
        (tmp_path / "out" / "checkpoint.pt").write_bytes(mutate(good, rng))
        code = exit_code(*training(trained, tmp_path / "out"))
        err = capsys.readouterr().err
        assert code in (0, 2), err
        assert code == 0 or err.count("\n") == 1


def test_a_damaged_file_of_pairs_is_named_with_the_remedy(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "copy")
    pairs = next((tmp_path / "copy" / "cache").rglob("rendered-00000.npz"))
    pairs.write_bytes(pairs.read_bytes()[:1000])
    line = refused(capsys, *training(tmp_path / "copy", tmp_path / "new"))
    assert "rendered-00000.npz" in line
    assert "delete it" in line


def training(folder: Path, out: Path) -> list[str]:
    config, cache = folder / "config.yaml", folder / "cache"
    where = ["--out", str(out), "--cache", str(cache), "--device", "cpu"]
    return ["train", "--config", str(config), *where]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "config.yaml").write_text(yaml.safe_dump(TRAINING))
    assert exit_code(*training(folder, folder / "out")) == 0
    return folder


# --- output --------------------------------------------------------------------------------------


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    path = recording(tmp_path / "drive.npz")
    process = subprocess.Popen(
        [*COMMAND, "fuse", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 141
    assert err == b""


def test_a_full_device_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "fuse", str(recording(tmp_path / "drive.npz"))],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "hydranet fuse: the output: No space left on device\n"


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("storage", ["", "mcap", "sqlite3"])
def test_a_full_disk_leaves_nothing_partial(tmp_path: Path, storage: str) -> None:
    source, out = kitti_folder(tmp_path / "source"), tmp_path / "out"
    command = ["run", str(source), "--only", "vo", "--out", str(out)]
    if storage:
        command = ["kitti2bag", str(source), str(out), "--storage", storage]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    done = subprocess.run(
        [*COMMAND, *command], capture_output=True, text=True, preexec_fn=limit, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot be written" in done.stderr
    assert not out.exists() or not list(out.iterdir())
    assert {path.name for path in tmp_path.iterdir()} <= {"source", "out"}


def test_names_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    out = tmp_path / "\u00f6\u4e16"
    done = subprocess.run(
        [*COMMAND, "fuse", str(recording(tmp_path / "drive.npz")), "--out", str(out)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert rb"\xf6\u4e16" in done.stdout


# --- arguments and names -------------------------------------------------------------------------

LONG = "a" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", LONG],
        ["run", "a\0b"],
        ["run", "street", "--weights", LONG, "--frames", "2"],
        ["run", "street", "--config", LONG],
        ["run", "street", "--out", LONG, "--frames", "2"],
        ["run", "street", "--set", 'gyro.weights="a\\0b"'],
        ["run", "--frames", "1000000000"],
        ["run", "--frames", "9" * 5000],
        ["bench", "--frames", "100000"],
        ["fuse", LONG + ".npz"],
        ["evaluate", LONG, LONG],
        ["evaluate", LONG + ".npz:a", "a\0.npz:a"],
        ["train", "--config", LONG],
        ["train", "--set", "seed=99999999999999999999999", "--out", "out"],
        ["train", "--set", f"seed={'9' * 6000}", "--out", "out"],
        ["kitti2bag", "street", LONG],
        ["experiment", "one-d", "--seed", "-1"],
        ["experiment", "one-d", "--seed", "99999999999999999999"],
        ["experiment", "kitti", "--recordings", LONG],
    ],
    ids=lambda arguments: " ".join(arguments)[:40].replace("\0", "NUL"),
)
def test_arguments_that_cannot_be(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *arguments).startswith("hydranet")


@pytest.mark.parametrize("name", ["a\x1b[31mb", "two\nlines", "\u202eevil", "bell\a", "\x9b2J"])
def test_control_characters_are_shown_as_escapes(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, "run", name)
    refused(capsys, "run", "--frames", name)
    refused(capsys, "run", "--set", f"{name}=1")
    folder = kitti_folder(tmp_path / name)
    out = tmp_path / "out" / name
    assert exit_code("run", str(folder), "--only", "vo", "--out", str(out)) == 0
    printed = capsys.readouterr().out
    assert all(line.isprintable() for line in printed.splitlines())
    # The settings of such a run are read back.
    assert exit_code("run", str(folder), "--config", str(out / "config.yaml"), "--json") == 0
    capsys.readouterr()
    (folder / "calib.txt").write_text("")
    refused(capsys, "run", folder)


# --- folders and trajectories --------------------------------------------------------------------


def test_a_byte_order_mark_is_no_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kitti_folder(tmp_path / "kitti")
    for name in ("calib.txt", "times.txt", "poses.txt"):
        (folder / name).write_text(BOM + (folder / name).read_text(), encoding="utf-8")
    settings = tmp_path / "settings.yaml"
    settings.write_text(BOM + "parts: vo\n", encoding="utf-8")
    assert exit_code("run", str(folder), "--config", str(settings), "--json") == 0
    tum = tmp_path / "a.tum"
    tum.write_text(BOM + tum_text(), encoding="utf-8")
    assert exit_code("evaluate", str(tum), str(tum)) == 0
    assert exit_code("train", "--config", str(settings), "--dump-config") == 2
    assert "parts is not known" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "lines", "where"),
    [
        ("times.txt", ["", "0.0", "", "0.1", "0.1"], "times.txt:5: times must increase"),
        ("times.txt", ["0.0", "nan", "0.2"], "times.txt:2: times must be finite"),
        ("times.txt", ["0.0", "0.1", "1e10"], "times.txt:3: times must be finite"),
        ("times.txt", ["0.0", "1e300", "0.2"], "times.txt:2: times must be finite"),
        ("times.txt", ["0.0", "1e-10", "0.2"], "times.txt:2: times must increase"),
        ("times.txt", ["", "0", "", "x", "2"], "times.txt:4: could not convert"),
        ("poses.txt", ["# truth", "", "1 0 0"], "poses.txt:3: expected 12 numbers"),
        ("poses.txt", ["", "1 0 0 0 0 1 0 0 0 0 1 nan"], "poses.txt:2: row 0 is not finite"),
        ("calib.txt", ["", "", "P0: 1 2"], "calib.txt:3: P0 must have 12 numbers"),
        ("calib.txt", ["a\x85b\x0cc", "P0: 1 2"], "calib.txt:2: P0 must have 12 numbers"),
    ],
)
def test_lines_are_numbered_as_an_editor_numbers_them(
    tmp_path: Path, name: str, lines: list[str], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kitti_folder(tmp_path / "kitti")
    for mark in ("", BOM):
        (folder / name).write_text(mark + "\n".join(lines) + "\n", encoding="utf-8")
        assert where in refused(capsys, "run", folder, "--only", "vo")


def test_images_that_are_too_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import cv2

    folder = kitti_folder(tmp_path / "kitti")
    P = "P{}: 200 0 4 {} 0 200 4 0 0 0 1 0\n"
    (folder / "calib.txt").write_text(P.format(0, 0) + P.format(1, -100))
    for path in folder.glob("image_*/*.png"):
        cv2.imwrite(str(path), cv2.imread(str(path), 0)[:8, :8])
    for only in (["--only", "vo"], ["--only", "rotation"], []):
        assert "kitti: frame at" in refused(capsys, "run", folder, *only)


@pytest.mark.parametrize("share", [0.3, 0.7, 0.99])
def test_jpegs_that_are_cut_off(
    tmp_path: Path, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kitti_folder(tmp_path / "kitti", ".jpg")
    path = folder / "image_0" / "000001.jpg"
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert "000001.jpg: is cut off" in refused(capsys, "run", folder, "--only", "vo")


def test_a_principal_point_outside_of_the_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kitti_folder(tmp_path / "kitti")
    text = (folder / "calib.txt").read_text()
    (folder / "calib.txt").write_text(text.replace("120", "1200"))
    line = refused(capsys, "run", folder, "--only", "vo")
    assert "calib.txt: has its principal point at 1200, 48, outside" in line


def test_a_plain_array_is_no_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.eye(4))
    for name in ("a.npy", "a.npz"):
        shutil.copy(tmp_path / "a.npy", tmp_path / name) if name != "a.npy" else None
        assert "is a single array" in refused(capsys, "fuse", tmp_path / name)
    refused(capsys, "evaluate", tmp_path / "a.npy", tmp_path / "a.npy")


def test_arrays_that_are_no_covariances_or_not_real(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = dict(np.load(recording(tmp_path / "good.npz")))
    askew = good["Sigma_21_vo"].copy()
    askew[2, 0, 1] += 0.5 * askew[2, 0, 0]
    for name, value, why in (
        ("Sigma_21_vo", askew, "row 2 is not symmetric"),
        ("T_w_c_vo", good["T_w_c_vo"] + 0j, "not of real numbers"),
        ("C_21_hn", good["C_21_hn"] * (1 + 1e-9j), "not of real numbers"),
        ("Sigma_21_hn", good["Sigma_21_hn"].astype(bool), "not of real numbers"),
    ):
        np.savez(tmp_path / "bad.npz", **{**good, name: value})
        assert why in refused(capsys, "fuse", tmp_path / "bad.npz")


def test_a_truth_that_stands_has_no_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "moving.tum").write_text(tum_text())
    standing = "".join(f"{1e9 + 0.1 * i:.3f} 1 2 3 0 0 0 1\n" for i in range(6))
    (tmp_path / "standing.tum").write_text(standing)
    files = tmp_path / "moving.tum", tmp_path / "standing.tum"
    line = refused(capsys, "evaluate", *files, "--align", "Sim3")
    assert "the truth stands still" in line
    assert exit_code("evaluate", *map(str, files), "--align", "SE3") == 0


# --- bags ----------------------------------------------------------------------------------------


@pytest.fixture
def sqlite_bag(tmp_path: Path) -> Path:
    return bag(tmp_path / "bag", kitti_folder(tmp_path / "frames"), "sqlite3", False)


def change(folder: Path, sql: str) -> None:
    database = sqlite3.connect(next(folder.glob("*.db3")))
    with database:
        database.execute(sql)
    database.close()


TOPIC = "(SELECT id FROM topics WHERE name = '/left/{}')"


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (f"DELETE FROM messages WHERE topic_id = {TOPIC.format('camera_info')}", "camera_info"),
        (
            "UPDATE messages SET data = substr(data, 1, 30) WHERE topic_id = "
            + TOPIC.format("camera_info"),
            "damaged",
        ),
        ("UPDATE messages SET data = substr(data, 1, 3)", "damaged"),
        ("UPDATE messages SET data = 'a text that is long enough for a header'", "text"),
        ("UPDATE messages SET data = 3.5", "text"),
        ("UPDATE messages SET timestamp = 'noon'", "bag"),
    ],
    ids=["no camera_info", "half a camera_info", "three bytes", "text", "number", "time"],
)
def test_bags_with_damaged_messages(
    sqlite_bag: Path, sql: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(sqlite_bag, sql)
    assert why in refused(capsys, "run", sqlite_bag, "--only", "vo")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("compression_mode: ''", "compression_mode: message"),
        ("compression_mode: ''", "compression_mode: file"),
        ("compression_mode: ''", "compression_mode: [a]"),
        ("version: 8", "version: [8]"),
        ("version: 8", "version: " + "[" * 3000),
        ("version: 8", "version: &a [1]\n  other: *a"),
    ],
    ids=["message", "file", "list", "version", "deep", "alias"],
)
def test_bags_whose_metadata_are_false(
    sqlite_bag: Path, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = sqlite_bag / "metadata.yaml"
    text = metadata.read_text()
    assert old in text
    text = text.replace(old, new).replace("compression_format: ''", "compression_format: zstd")
    metadata.write_text(text)
    refused(capsys, "run", sqlite_bag, "--only", "vo")


# --- configurations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("data: []", "data: null", "data: text", "data: 3", "network: []", "network: null"),
        *("network: text", "augment: [1]", "loss: null", "gaps: {}", "[]", "text", "3", "- a"),
        *("network: {heads: 2.5}", "network: {heads: true}", "network: {features: 65536}"),
        *("seed: 1e30", "seed: -1", "seed: 99999999999999999999", "seed: 7.5", "seed: true"),
        *("epochs: .inf", "epochs: .nan", "learning_rate: 1e400", "batch_size: 1"),
        *("data: {gaps: []}", "data: {gaps: [0]}", "data: {gaps: 1}", "data: {gaps: [20]}"),
        *("data: {streets: 100000000}", "data: {frames_per_street: 100000}"),
        *("data: {kitti: [a], kitti_validation: [a]}", 'data: {kitti: ["a\\0"]}'),
        *("seed: 1\nseed: 2", "a: &a [1]\nb: *a", "seed: " + "[" * 5000, "seed: !!python/name:os"),
        *("seed: \x01", "? [a]\n: b", "preset: [default]", "base: [default]", "base: null"),
    ],
)
def test_training_configurations_that_cannot_be(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    line = refused(capsys, "train", "--config", path, "--out", tmp_path / "out")
    assert "config.yaml" in line
    assert not (tmp_path / "out").exists()
