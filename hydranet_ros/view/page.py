"""The page: paths, camera, ellipsoid, picture, plots, words; served by viser on one port.

    with open_page(history, "127.0.0.1", 8080) as page:
        print(page.url)

A thread of its own draws what is new, ten times a second at most, and nothing while no browser is
there. Paths go out in chunks and plots as windows: traffic does not grow with the drive.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from html import escape
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from hydranet_ros.errors import HydraNetError, require
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.view.scene import COLOURS, History, Scene

if TYPE_CHECKING:
    import viser

HOST, PORT = "127.0.0.1", 8080
PERIOD_S = 0.1
PLOT_PERIOD_S, WINDOW_S, MOST_SAMPLES = 0.5, 30.0, 200
# Segments of a chunk that still grows, and how many chunks are put together when they are full.
CHUNK, TOGETHER = 64, 16
LEAST_STEP_M = 0.02
SIGMAS, LEAST_RADIUS_M = 3.0, 0.02
FIELD_OF_VIEW, FRUSTUM_M = 0.9, 0.8
BEHIND = np.array([-9.0, -5.0, 7.0])  # of the camera of the page, as seen from the vehicle
LINES = ("#1f5fbf", "#d1701f", "#2f8f4e", "#8a3fbf", "#b0305c", "#4a7a8c")
BOUND = "3 sigma"


def open_page(
    history: History, host: str = HOST, port: int = PORT, title: str = "hydranet"
) -> Page:
    """Serve a history on a port, the next free one where it is taken; close it when done."""
    require("the view", "viser")
    return Page(history, host, port, title)


def exposure(host: str) -> str:
    """Who can see the page, in words."""
    try:
        local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        local = False
    if local:
        return "seen from this machine only (--host 0.0.0.0 for others)"
    return "seen by everybody who reaches this machine: there is no password"


class Page:
    """A served history; `url` says where."""

    def __init__(self, history: History, host: str, port: int, title: str) -> None:
        import viser

        try:
            with socket.socket() as probe:
                probe.bind((host, 0))
        except (OSError, UnicodeError) as error:
            raise HydraNetError(f"--host {host}: is no address of this machine: {error}") from None
        with redirect_stdout(io.StringIO()):  # it would print a banner
            self._server = viser.ViserServer(host=host, port=port, label=title, verbose=False)
        shown = "127.0.0.1" if host in ("0.0.0.0", "localhost") else host
        self.url = f"http://{shown}:{self._server.get_port()}"
        self._drawing = Drawing(self._server, history)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="view", daemon=True)
        self._thread.start()

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def browsers(self) -> int:
        """How many look at it."""
        return len(self._server.get_clients())

    def close(self) -> None:
        """End the server."""
        self._stop.set()
        self._thread.join(2.0)
        with redirect_stdout(io.StringIO()):
            self._server.stop()

    def _draw(self) -> None:
        while not self._stop.wait(PERIOD_S):
            if self.browsers:
                self._drawing.update(time.monotonic())


class Drawing:
    """What stands on the page, and how it follows a history."""

    def __init__(self, server: viser.ViserServer, history: History) -> None:
        self._server, self._history = server, history
        self._drawn = 0  # scenes whose poses are in the paths
        self._number = -1  # the scene that is shown
        self._clock: tuple[float, int] | None = None  # of a replay: when it began, at which stamp
        self._plotted_s = -PLOT_PERIOD_S
        self._paths: dict[str, PathChunks] = {}
        self._plots: dict[str, Plot] = {}
        gui, scene = server.gui, server.scene
        gui.configure_theme(control_width="large", show_logo=False, show_share_button=False)
        gui.main_panel.dock_right()
        scene.set_up_direction("+z")
        scene.add_grid(
            "/grid", 2000.0, 2000.0, cell_size=1.0, section_size=10.0,
            cell_color=(232, 232, 232), section_color=(205, 205, 205),
            infinite_grid=True, fade_distance=150.0, shadow_opacity=0.0,
        )  # fmt: skip
        server.initial_camera.position = tuple(BEHIND)
        server.initial_camera.look_at = (0.0, 0.0, 0.0)
        self._head = gui.add_html(_head(None, 0.0))
        self._picture = gui.add_image(np.full((120, 480, 3), 235, np.uint8), format="jpeg")
        self._picture.visible = False
        self._follow = gui.add_checkbox("Follow", True)
        # viser sets values through __setattr__, which its types do not tell.
        self._pause: Any = gui.add_checkbox("Pause", False)
        self._slider: Any = gui.add_slider("Frame", 0, 1, 1, 0)
        self._slider.on_update(self._slid)
        gui.add_button("Screenshot").on_click(self._screenshot)
        self._words = gui.add_html("")
        self._frustum = scene.add_camera_frustum(
            "/camera", FIELD_OF_VIEW, 1.6, scale=FRUSTUM_M, color=COLOURS["fused"], visible=False
        )
        self._ellipsoid = scene.add_icosphere(
            "/position_3_sigma", 1.0, COLOURS["fused"], opacity=0.25, visible=False,
            cast_shadow=False, receive_shadow=False,
        )  # fmt: skip

    # --- what the user does ----------------------------------------------------------------------

    def _slid(self, event: Any) -> None:
        """Whoever moves the slider wants to look at that frame."""
        if event.client is not None:
            self._pause.value = True

    def _screenshot(self, event: Any) -> None:
        """Send what the browser shows back to it, as a file."""
        client = event.client
        width = min(client.camera.image_width, 1920)
        height = min(client.camera.image_height, 1200)
        picture = client.get_render(height, width, transport_format="png", timeout=10.0)
        _, data = cv2.imencode(".png", cv2.cvtColor(picture[..., :3], cv2.COLOR_RGB2BGR))
        client.send_file_download(f"hydranet_{self._number}.png", data.tobytes())

    # --- what is new -----------------------------------------------------------------------------

    def update(self, now_s: float) -> None:
        """Draw what has come since the last time, if anything has."""
        if not self._history.count:
            return
        number = self._next(now_s)
        new = self._history.count > self._drawn
        with self._server.atomic():
            if new:
                self._extend_paths()
            if number == self._number and not (new and self._pause.value):
                return
            scene = self._history[number]
            self._slider.max = max(self._history.count - 1, 1)
            if number != self._number:
                self._number = number
                if not self._pause.value:
                    self._slider.value = number
                self._show(scene)
                if now_s - self._plotted_s >= PLOT_PERIOD_S or self._pause.value:
                    self._plotted_s = now_s
                    self._plot(number)

    def _next(self, now_s: float) -> int:
        """The number of the scene to be shown."""
        history, last = self._history, self._history.count - 1
        if self._pause.value:
            self._clock = None
            return min(max(int(self._slider.value), history.first), last)
        if history.live:
            return last
        number = max(self._number, 0)
        if self._clock is None:
            if number >= last > 0 and self._number >= 0:
                return last
            self._clock = now_s, history[number].stamp_ns
        begin_s, begin_ns = self._clock
        until_ns = begin_ns + round((now_s - begin_s) * 1e9)
        while number < last and history[number + 1].stamp_ns <= until_ns:
            number += 1
        return number

    def _extend_paths(self) -> None:
        for scene in self._history.since(self._drawn):
            for name, T in scene.poses.items():
                if name not in self._paths:
                    self._paths[name] = PathChunks(self._server, name)
                self._paths[name].add(T[:3, 3])
        self._drawn = self._history.count
        for path in self._paths.values():
            path.send()

    def _show(self, scene: Scene) -> None:
        T = next((scene.poses[n] for n in ("fused", "odometry", "gyro") if n in scene.poses), None)
        seconds = (scene.stamp_ns - self._history[0].stamp_ns) * 1e-9
        self._head.content = _head(scene, seconds)
        self._words.content = _words(scene)
        data = self._history.picture(self._number)
        if data is not None:
            picture = np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR))
            height, width = picture.shape[:2]
            self._picture.image = picture[..., ::-1]
            self._picture.visible = True
            self._frustum.aspect = width / height
        if T is None:
            return
        wxyz, position = lie.quaternion_from_matrix(T[:3, :3]), T[:3, 3]
        self._frustum.wxyz, self._frustum.position = wxyz, position
        self._frustum.visible = True
        if scene.Sigma is not None:
            self._show_ellipsoid(scene.Sigma, position)
        if self._follow.value:
            self._move_cameras(position)

    def _show_ellipsoid(self, Sigma: Array, position: Array) -> None:
        variances, axes = np.linalg.eigh(Sigma)
        if np.linalg.det(axes) < 0.0:
            axes[:, 0] *= -1.0
        radii = np.maximum(SIGMAS * np.sqrt(np.maximum(variances, 0.0)), LEAST_RADIUS_M)
        self._ellipsoid.scale = tuple(radii.tolist())
        self._ellipsoid.wxyz = lie.quaternion_from_matrix(axes)
        self._ellipsoid.position = position
        self._ellipsoid.visible = True

    def _move_cameras(self, position: Array) -> None:
        """Let every browser's camera look at the vehicle, from where its user has turned it."""
        for client in self._server.get_clients().values():
            camera = client.camera
            if camera.update_timestamp > 0.0:
                away = camera.position - camera.look_at
                camera.position = position + away
                camera.look_at = position

    def _plot(self, end: int) -> None:
        scenes = self._history.window(end, WINDOW_S)
        scenes = scenes[:: -(-len(scenes) // MOST_SAMPLES)]
        names: dict[str, dict[str, None]] = {}
        for scene in scenes:
            for plot, numbers in scene.numbers.items():
                names.setdefault(plot, {}).update(dict.fromkeys(numbers))
        begin_ns = self._history[0].stamp_ns
        for plot, lines in names.items():
            # A line without a number would spoil the range of the axis.
            whole = [s for s in scenes if s.numbers.get(plot, {}).keys() == lines.keys()]
            if len(whole) < 2:
                continue
            times = np.array([(scene.stamp_ns - begin_ns) * 1e-9 for scene in whole])
            values = {line: np.array([s.numbers[plot][line] for s in whole]) for line in lines}
            if plot not in self._plots or self._plots[plot].lines != tuple(lines):
                if plot in self._plots:
                    self._plots[plot].remove()
                self._plots[plot] = Plot(self._server, plot, tuple(lines))
            self._plots[plot].send(times, values)


class PathChunks:
    """A path as chunks of line segments: only the last one is sent again as it grows."""

    def __init__(self, server: viser.ViserServer, name: str) -> None:
        self._server, self._name = server, name
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
            f"/paths/{self._name}/{self._count}",
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
                shown.append(
                    uplot.Series(label=line, stroke=next(colours), width=1.5, spanGaps=True)
                )
        nothing = tuple(np.zeros(2) for _ in shown)
        self._plot = server.gui.add_uplot(
            nothing,
            tuple(shown),
            title=title,
            scales={"x": uplot.Scale(time=False)},
            legend=uplot.Legend(show=True, live=False),
            height=150,
        )

    def send(self, times: Array, values: Mapping[str, Array]) -> None:
        """Show a window."""
        columns = [times]
        for line in self.lines:
            columns += [values[line], -values[line]] if line == BOUND else [values[line]]
        self._plot.data = tuple(columns)

    def remove(self) -> None:
        """Take it off the page."""
        self._plot.remove()


# --- words ---------------------------------------------------------------------------------------

STYLE = "padding: 0 0.9em; font-size: 0.85em; line-height: 1.45"
OK, BAD = "#2f8f4e", "#b0305c"


def _head(scene: Scene | None, seconds: float) -> str:
    """The legend of the paths, and the time."""
    shown = COLOURS if scene is None else [name for name in COLOURS if name in scene.poses]
    dots = " &nbsp; ".join(
        f'<span style="color: rgb{COLOURS[name]}">&#9632;</span> {name}' for name in shown
    )
    when = "waiting for the first frame" if scene is None else f"{seconds:.1f} s"
    return f'<div style="{STYLE}">{dots}<br><b>{when}</b></div>'


def _words(scene: Scene) -> str:
    """The state of each source, and what was found."""
    rows = []
    for name, words in scene.states.items():
        colour = OK if words.startswith("ok") else BAD
        state = f'<span style="color: {colour}">{escape(words)}</span>'
        rows.append(f"<tr><td>{escape(name)}</td><td>{state}</td></tr>")
    rows += [
        f"<tr><td>{escape(name)}</td><td>{escape(words)}</td></tr>"
        for name, words in scene.found.items()
    ]
    style = "width: 100%; border-spacing: 0.3em 0"
    return f'<div style="{STYLE}"><table style="{style}">{"".join(rows)}</table></div>'
