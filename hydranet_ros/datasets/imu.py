"""Recorded IMUs: rows `time, wx, wy, wz, ax, ay, az`, as samples in the axes of the camera.

Time is in seconds, or in nanoseconds where it is too large for that (EuRoC); rates are in rad/s,
accelerations in m/s^2, or in g where their length is nearer to one than to ten. Rows whose time is
not after the one before are left out. EuRoC says how its camera is mounted to the IMU in
`cam0/sensor.yaml`; elsewhere a setting does, and by default the IMU has the axes of the base.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np

from hydranet_ros.datasets.camera_files import read_sensor
from hydranet_ros.errors import FileError
from hydranet_ros.files import read_lines
from hydranet_ros.fusion.imu import STANDARD_GRAVITY, ImuSample
from hydranet_ros.geometry.lie import Array
from hydranet_ros.geometry.stamps import Stamps

COLUMNS = 7
# Seconds beyond this are nanoseconds, and the latest of them.
LATEST_S, LATEST_NS = 9e9, 9e18


def read_imu(path: str | PathLike[str], C_c_i: Array) -> list[ImuSample]:
    """The samples of a file; C_c_i (3, 3) turns its axes to the camera's."""
    path = Path(path)
    stamps: list[int] = []
    rows: list[Array] = []
    for number, line in read_lines(path):
        text = line.partition("#")[0].replace(",", " ").split()
        if not text:
            continue
        try:
            row = np.array([float(each) for each in text[:COLUMNS]])
        except ValueError:
            raise FileError(path, f"line {number} is not a row of numbers") from None
        if len(row) != COLUMNS or not np.isfinite(row).all() or not 0.0 <= row[0] < LATEST_NS:
            raise FileError(path, f"line {number} is not: time, three rates, three accelerations")
        if row[0] > LATEST_S:
            stamp = int(text[0]) if text[0].isdecimal() else round(float(row[0]))
        else:
            stamp = round(float(row[0]) * 1e9)
        if not stamps or stamp > stamps[-1]:
            stamps.append(stamp)
            rows.append(row[1:])
    if len(rows) < 2:
        raise FileError(path, "has fewer than two rows in order of time: no IMU")
    values = np.array(rows)
    length = float(np.median(np.linalg.norm(values[:, 3:], axis=1)))
    unit = STANDARD_GRAVITY if length < np.sqrt(STANDARD_GRAVITY) else 1.0
    return [
        ImuSample(stamp, C_c_i @ row[:3], C_c_i @ row[3:] * unit)
        for stamp, row in zip(stamps, values, strict=True)
    ]


def refuse_elsewhere(path: str | PathLike[str], samples: list[ImuSample], stamps: Stamps) -> None:
    """Refuse an IMU that was never recorded together with the frames: its clock is another one."""
    first, last = samples[0].stamp_ns, samples[-1].stamp_ns
    if last < int(stamps[0]) or first > int(stamps[-1]):
        raise FileError(
            path,
            f"is of {first * 1e-9:.3f} to {last * 1e-9:.3f} s, the frames of "
            f"{int(stamps[0]) * 1e-9:.3f} to {int(stamps[-1]) * 1e-9:.3f} s: their clocks differ",
        )


def euroc_mount(path: str | PathLike[str]) -> Array | None:
    """C_c_i of the left camera beside an IMU of EuRoC; None where the file is none."""
    sensor = Path(path).parent.parent / "cam0" / "sensor.yaml"
    if not sensor.is_file():
        return None
    _, T_i_c = read_sensor(sensor)
    C_c_i: Array = T_i_c[:3, :3].T.copy()
    return C_c_i
