"""The record of a run as a file, so that its report can be written again, or compared."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from hydranet_ros.errors import FileError
from hydranet_ros.evaluation.record import (
    Consistency,
    Event,
    OffsetField,
    RotationErrors,
    RunRecord,
    Series,
)
from hydranet_ros.geometry.lie import Array

RECORD_FILE, TIMING_FILE = "record.npz", "timing.json"


def record_bytes(record: RunRecord) -> bytes:
    """A record as a file (npz), without latencies: the same bytes for the same run."""
    arrays: dict[str, Array] = {}

    def put(array: Any) -> str | None:
        if array is None:
            return None
        name = f"a{len(arrays)}"
        arrays[name] = np.asarray(array)
        return name

    told = {
        "title": record.title,
        "stamps": put(record.stamps_ns),
        "trajectories": {name: put(T) for name, T in record.trajectories.items()},
        "truth": put(record.T_w_c_gt),
        "rotations": {
            name: [put(e.stamps_ns), put(e.phi), put(e.Sigma), put(e.epistemic)]
            for name, e in record.rotations.items()
        },
        "consistency": {
            name: [put(e.stamps_ns), put(e.nis), e.degrees_of_freedom]
            for name, e in record.consistency.items()
        },
        "figures": {name: dict(row) for name, row in record.figures.items()},
        "notes": list(record.notes),
        "offsets": None
        if record.offsets is None
        else [put(record.offsets.pixels), put(record.offsets.offsets)],
        "errors": {k: _series(put, e) for k, e in record.errors.items()},
        "found": {k: _series(put, e) for k, e in record.found.items()},
        "events": [[e.stamp_ns, e.source, e.reason] for e in record.events],
        "blocks": {name: list(each.items()) for name, each in record.blocks.items()},
        "configuration": record.configuration,
    }
    text = json.dumps(told).encode()
    out = io.BytesIO()
    arrays["told"] = np.frombuffer(text, dtype=np.uint8)
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def _series(put: Any, each: Series) -> list[str | None]:
    return [put(each.stamps_ns), put(each.values), put(each.sigmas)]


def read_record(folder: Path) -> RunRecord:
    """The record in the folder of a run, with the latencies of its timing.json."""
    path = folder / RECORD_FILE
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        told = json.loads(arrays["told"].tobytes())
        timing = json.loads((folder / TIMING_FILE).read_text(encoding="utf-8"))
        return _record(told, arrays, timing)
    except FileNotFoundError as error:
        raise FileError(
            error.filename or path, "is missing: make it with hydranet run SOURCE --out DIR"
        ) from None
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 zip, JSON and NumPy have errors of their own
        raise FileError(path, f"is damaged: {error}") from None


def _record(told: Any, arrays: dict[str, Array], timing: Any) -> RunRecord:
    def get(name: str | None) -> Any:
        return None if name is None else arrays[name]

    return RunRecord(
        told["title"],
        get(told["stamps"]),
        {name: get(T) for name, T in told["trajectories"].items()},
        get(told["truth"]),
        {k: RotationErrors(*(get(part) for part in e)) for k, e in told["rotations"].items()},
        {k: Consistency(get(e[0]), get(e[1]), e[2]) for k, e in told["consistency"].items()},
        {"frame": np.array(timing["ms"], dtype=np.float64)} if timing.get("ms") else {},
        told["figures"],
        tuple(told["notes"]),
        None if told["offsets"] is None else OffsetField(*(get(e) for e in told["offsets"])),
        {k: Series(*(get(part) for part in e)) for k, e in told["errors"].items()},
        {k: Series(*(get(part) for part in e)) for k, e in told["found"].items()},
        tuple(Event(*each) for each in told["events"]),
        {name: {int(n): float(v) for n, v in each} for name, each in told["blocks"].items()},
        told["configuration"],
    )
