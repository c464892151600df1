"""What the page is drawn of: paths, plots, and the camera that follows the vehicle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hydranet_ros.geometry.lie import Array
from hydranet_ros.view.scene import COLOURS

if TYPE_CHECKING:
    import viser

# Segments of a chunk that still grows, and how many chunks are put together when they are full.
CHUNK, TOGETHER = 64, 16
LEAST_STEP_M = 0.02
LINES = ("#1f5fbf", "#d1701f", "#2f8f4e", "#8a3fbf", "#b0305c", "#4a7a8c")
# Sources have the colours of their paths.
NAMED = {"odometry": "#d1701f", "rotation": "#2f8f4e"}
BOUND = "3 sigma"
BEHIND = np.array([-9.0, -5.0, 7.0])  # of the camera of the page, as seen from the vehicle
SAME_VIEW = 0.01  # a share by which the view of a browser may differ from what it was told
SETTLED_S, OURS_S = 1.0, 3.0
PADDING = (12, 24, 0, 0)  # px above, right, below, left: or the uppermost number is cut off
LEAST_SPAN = 0.02  # of an axis whose line is flat


class Follow:
    """Every browser's camera goes with the vehicle, and stays where its user has turned it.

    A browser tells where its camera is, late and between two of our messages as well: a view that
    differs is taken over when it stays for SETTLED_S, and until then the camera is left alone.
    """

    def __init__(self) -> None:
        self._away: dict[int, Array] = {}
        self._doubtful: dict[int, tuple[Array, float]] = {}
        self._ours_until_s = -1.0  # after we have changed the view: the browser is told, not asked

    def move(self, clients: Iterable[viser.ClientHandle], position: Array, now_s: float) -> None:
        """Let all look at a position."""
        for client in clients:
            camera, number = client.camera, client.client_id
            if camera.update_timestamp == 0.0:
                continue
            told = camera.position - camera.look_at
            away = self._away.setdefault(number, told)
            before = self._doubtful.pop(number, None)
            if not _same(told, away) and now_s > self._ours_until_s:
                since = before[1] if before is not None and _same(told, before[0]) else now_s
                if now_s - since < SETTLED_S:
                    self._doubtful[number] = told, since
                    continue
                self._away[number] = away = told
            camera.position = position + away
            camera.look_at = position

    def come_nearer(self, server: viser.ViserServer, size: float, now_s: float) -> None:
        """Look from a share of the distance, in browsers that are there and that come."""
        server.initial_camera.position = tuple(size * BEHIND)
        self._ours_until_s = now_s + OURS_S
        self._away = dict.fromkeys(server.get_clients(), size * BEHIND)


def _same(one: Array, other: Array) -> bool:
    return bool(np.linalg.norm(one - other) <= SAME_VIEW * np.linalg.norm(other))


class PathChunks:
    """A path as chunks of line segments: only the last one is sent again as it grows."""

    def __init__(self, server: viser.ViserServer, name: str, root: str = "") -> None:
        self._server, self._name, self._root = server, name, root
        self._points: list[Array] = []  # of the chunk that grows
        self._full: list[tuple[Array, Any]] = []  # full chunks that are not yet put together
        self._count = 0
        self._growing: Any = None
        self._changed = False

    def add(self, point: Array) -> None:
        """Take a point in, where it is away from the last one."""
        if self._points and np.linalg.norm(point - self._points[-1]) < LEAST_STEP_M:
            return
        self._points.append(point)
        self._changed = True
        if len(self._points) > CHUNK:
            self.send()

    def send(self) -> None:
        """Send the chunk that grows; put full ones away."""
        if not self._changed or len(self._points) < 2:
            return
        self._changed = False
        points = np.array(self._points, dtype=np.float32)
        segments = np.stack([points[:-1], points[1:]], axis=1)
        if self._growing is None:
            self._growing = self._lines(segments)
        else:
            self._growing.points = segments
        if len(segments) >= CHUNK:
            self._full.append((segments, self._growing))
            self._points, self._growing = self._points[-1:], None
        if len(self._full) >= TOGETHER:
            together = np.concatenate([each for each, _ in self._full])
            self._lines(together)
            for _, handle in self._full:
                handle.remove()
            self._full = []

    def _lines(self, segments: Array) -> Any:
        self._count += 1
        return self._server.scene.add_line_segments(
            f"{self._root}/paths/{self._name}/{self._count}",
            segments,
            COLOURS[self._name],
            thickness=3.0,
            thickness_units="screen",
        )


class Plot:
    """A plot over the last seconds. The line '3 sigma' is a bound, drawn on both sides."""

    def __init__(self, server: viser.ViserServer, title: str, lines: tuple[str, ...]) -> None:
        from viser import uplot

        self.lines = lines
        shown = [uplot.Series(label="time (s)")]
        colours = iter(LINES)
        for line in lines:
            if line == BOUND:
                shown += [
                    uplot.Series(
                        label=label, stroke="#999999", width=1, dash=(5, 4), spanGaps=True
                    )
                    for label in (BOUND, "-" + BOUND)
                ]
            else:
                stroke = NAMED[line] if line in NAMED else next(colours)
                shown.append(uplot.Series(label=line, stroke=stroke, width=1.5, spanGaps=True))
        nothing = tuple(np.zeros(2) for _ in shown)
        self._plot = server.gui.add_uplot(
            nothing,
            tuple(shown),
            title=title,
            scales={"x": uplot.Scale(time=False), "y": uplot.Scale(range=(0.0, 1.0))},
            legend=uplot.Legend(show=True, live=False),
            axes=(uplot.Axis(label="time (s)", labelSize=16, size=28, gap=2), uplot.Axis(size=54)),
            height=165,
            padding=PADDING,
        )
        self._range = 0.0, 1.0

    def send(self, times: Array, values: Mapping[str, Array]) -> None:
        """Show a window."""
        from viser import uplot

        columns = [times]
        for line in self.lines:
            columns += [values[line], -values[line]] if line == BOUND else [values[line]]
        self._plot.data = tuple(columns)
        shown = axis_range(np.concatenate(columns[1:]))
        if shown != self._range:
            self._range = shown
            time, y = uplot.Scale(time=False), uplot.Scale(range=shown)
            self._plot.scales = {"x": time, "y": y}

    def remove(self) -> None:
        """Take it off the page."""
        self._plot.remove()


def axis_range(values: Array) -> tuple[float, float]:
    """Round bounds of an axis around values, so that it rarely changes; a flat line has room."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    span = max(high - low, LEAST_SPAN, 0.02 * max(abs(low), abs(high)))
    step = 10.0 ** np.floor(np.log10(span))
    step *= 0.5 if span < 2.0 * step else 1.0
    below, above = np.floor(low / step - 0.1), np.ceil(high / step + 0.1)
    return float(below * step), float(above * step)
