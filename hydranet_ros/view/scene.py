"""What the page shows of a frame, and the history of all frames so far.

Whoever has frames adds scenes; the page reads them at its own pace. Adding never waits for the
page, so that a slow or closed browser slows nobody.
"""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import cv2
import numpy as np
from numpy.typing import NDArray

from hydranet_ros.errors import FileError
from hydranet_ros.geometry.lie import Array

# Of each path the name, and the colour of DESIGN: the same in plots, RViz and Foxglove.
COLOURS = {
    "truth": (119, 119, 119),
    "odometry": (209, 112, 31),
    "gyro": (47, 143, 78),
    "fused": (31, 95, 191),
}
MOST_SCENES = 36_000  # an hour at 10 Hz
MOST_PICTURE_BYTES = 64_000_000
PICTURE_WIDTH, QUALITY = 480, 70
Picture = NDArray[np.uint8]
Numbers = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class Scene:
    """What is known of a frame. All but the stamp may be missing.

    `poses` are T_w_c by the names of COLOURS, w with z up, c optical. `Sigma` (3, 3) is of the
    fused position in w, in m^2. `numbers` are lines of plots, by plot and line; a plot says its
    unit. `states` tells each source in words, `found` what the fusion has found (biases, scales).
    """

    stamp_ns: int
    poses: Mapping[str, Array] = field(default_factory=dict)
    Sigma: Array | None = None
    numbers: Numbers = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, str] = field(default_factory=dict)


class History:
    """Scenes in their order, with pictures; the oldest are forgotten. Safe between threads.

    `live` tells whether more may come: then the page follows the newest, else it plays.
    """

    def __init__(self, live: bool = True) -> None:
        self.live = live
        self._lock = Lock()
        self._scenes: deque[Scene] = deque(maxlen=MOST_SCENES)
        self._pictures: dict[int, bytes] = {}  # JPEG, by the number of the scene
        self._bytes = 0
        self.count = 0
        """How many scenes were added; the next one has this number."""

    def add(self, scene: Scene, picture: Picture | None = None) -> None:
        """Take a scene in, with its picture: grey (h, w) or BGR (h, w, 3)."""
        data = None if picture is None else _jpeg(picture)
        with self._lock:
            if data is not None:
                self._keep(data)
            self._scenes.append(scene)
            self.count += 1

    def _keep(self, data: bytes) -> None:
        self._pictures[self.count] = data
        self._bytes += len(data)
        while self._bytes > MOST_PICTURE_BYTES:
            self._bytes -= len(self._pictures.pop(next(iter(self._pictures))))

    @property
    def first(self) -> int:
        """The number of the oldest scene that is kept."""
        return self.count - len(self._scenes)

    def window(self, end: int, seconds: float) -> list[Scene]:
        """The scenes of so many seconds, up to and with number `end`."""
        with self._lock:
            last = min(end, self.count - 1) - self.first
            if last < 0:
                return []
            begin_ns = self._scenes[last].stamp_ns - round(seconds * 1e9)
            found = []
            while last >= 0 and self._scenes[last].stamp_ns >= begin_ns:
                found.append(self._scenes[last])
                last -= 1
            return found[::-1]

    def since(self, number: int) -> list[Scene]:
        """The scenes from a number on, as far as they are kept."""
        with self._lock:
            start = max(number - self.first, 0)
            back = len(self._scenes) - start
            return [self._scenes[i] for i in range(-back, 0)] if back > 0 else []

    def __getitem__(self, number: int) -> Scene:
        with self._lock:
            kept = min(max(number - self.first, 0), len(self._scenes) - 1)
            return self._scenes[kept]

    def picture(self, number: int) -> bytes | None:
        """The JPEG of a scene; None where it has none."""
        with self._lock:
            return self._pictures.get(number)

    # --- files -----------------------------------------------------------------------------------

    def dumps(self, without: Sequence[str] = ()) -> bytes:
        """All but some plots as a file (npz): the same bytes for the same scenes.

        In single precision: what numba has just compiled and what it kept round otherwise.
        """
        with self._lock:
            scenes, pictures, first = list(self._scenes), dict(self._pictures), self.first
        names = list(COLOURS)
        poses = np.full((len(scenes), len(names), 4, 4), np.nan)
        Sigma = np.full((len(scenes), 3, 3), np.nan)
        told = []
        for i, scene in enumerate(scenes):
            for name, T in scene.poses.items():
                poses[i, names.index(name)] = T
            if scene.Sigma is not None:
                Sigma[i] = scene.Sigma
            kept = {
                plot: {line: float(f"{value:.6g}") for line, value in lines.items()}
                for plot, lines in scene.numbers.items()
                if plot not in without
            }
            told.append([scene.stamp_ns, kept, scene.states, scene.found])
        shown = {number - first: data for number, data in pictures.items() if number >= first}
        text = json.dumps(told).encode()
        out = io.BytesIO()
        np.savez_compressed(
            out,
            poses=poses.astype(np.float32),
            Sigma=Sigma.astype(np.float32),
            told=np.frombuffer(text, dtype=np.uint8),
            pictures=np.frombuffer(b"".join(shown.values()), dtype=np.uint8),
            sizes=np.array([[n, len(data)] for n, data in shown.items()], int).reshape(-1, 2),
        )
        return out.getvalue()

    @classmethod
    def load(cls, path: Path) -> History:
        """Read what `dumps` has given."""
        history = cls(live=False)
        try:
            # Of bytes: NumPy leaves a damaged file open.
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                told = json.loads(file["told"].tobytes())
                poses, Sigma = file["poses"], file["Sigma"]
                data, sizes = file["pictures"].tobytes(), file["sizes"]
            ends = np.cumsum(sizes[:, 1])
            pictures = {
                int(n): data[end - size : end] for (n, size), end in zip(sizes, ends, strict=True)
            }
            for i, (stamp, numbers, states, found) in enumerate(told):
                known = {
                    name: T
                    for name, T in zip(COLOURS, poses[i], strict=True)
                    if np.isfinite(T).all()
                }
                sure = Sigma[i] if np.isfinite(Sigma[i]).all() else None
                if i in pictures:
                    history._keep(pictures[i])
                history.add(Scene(int(stamp), known, sure, numbers, states, found))
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror or error}") from None
        except Exception as error:  # noqa: BLE001 zip, JSON and NumPy have errors of their own
            raise FileError(path, f"is damaged: {error}") from None
        return history


def _jpeg(picture: Picture) -> bytes:
    height, width = picture.shape[:2]
    if width > PICTURE_WIDTH:
        size = PICTURE_WIDTH, max(1, round(height * PICTURE_WIDTH / width))
        picture = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
    _, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return data.tobytes()
