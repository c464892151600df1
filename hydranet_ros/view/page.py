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
from contextlib import redirect_stdout
from dataclasses import dataclass
from html import escape
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from hydranet_ros.errors import HydraNetError, require
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array
from hydranet_ros.settings import Configuration, setting
from hydranet_ros.view.parts import BEHIND, Follow, PathChunks, Plot
from hydranet_ros.view.scene import COLOURS, History, Scene

if TYPE_CHECKING:
    import viser

HOST, PORT = "127.0.0.1", 8080
PERIOD_S = 0.1
PLOT_PERIOD_S, WINDOW_S, MOST_SAMPLES = 0.5, 30.0, 200
SIGMAS, LEAST_RADIUS_M, MOST_RADIUS_M = 3.0, 0.02, 15.0
FIELD_OF_VIEW, FRUSTUM_M = 0.9, 1.0
BELOW_M = 0.5  # the grid, below the first camera
# Cars are seen from afar, robots from near: by how fast they are, told after so many scenes.
CAR_M_S, NEAREST, TELLING = 6.0, 0.3, 20


@dataclass(frozen=True)
class PageConfig(Configuration):
    """Where the page is, and where what it has shown is kept."""

    host: str = setting(HOST, "address of the page; 0.0.0.0: everybody may look", live=False)
    port: int = setting(
        PORT, "port of the page; the next free one where taken", 1, 65535, live=False
    )
    out: str = setting(
        "", "folder for what was shown, with pictures: 1.npz, 2.npz of each drive", live=False
    )


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
        self._history, self._drawing = history, Drawing(self._server, history)
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

    def show(self, history: History) -> None:
        """Begin anew with another history; it does not wait for the page."""
        self._history = history

    def close(self) -> None:
        """End the server."""
        self._stop.set()
        self._thread.join(2.0)
        with redirect_stdout(io.StringIO()):
            self._server.stop()

    def _draw(self) -> None:
        while not self._stop.wait(PERIOD_S):
            if self._drawing.history is not self._history:
                self._server.gui.reset()
                self._server.scene.reset()
                self._drawing = Drawing(self._server, self._history, self._drawing.number + 1)
            if self.browsers:
                self._drawing.update(time.monotonic())


class Drawing:
    """What stands on the page, and how it follows a history."""

    def __init__(self, server: viser.ViserServer, history: History, number: int = 1) -> None:
        self._server, self.history, self.number = server, history, number
        # A browser keeps the place of what it had by the same name.
        self._root = f"/drive_{number}"
        self._drawn = 0  # scenes whose poses are in the paths
        self._number = -1  # the scene that is shown
        self._clock: tuple[float, int] | None = None  # of a replay: when it began, at which stamp
        self._plotted_s = -PLOT_PERIOD_S
        self._paths: dict[str, PathChunks] = {}
        self._plots: dict[str, Plot] = {}
        self._size: float | None = None  # of what is drawn, 1 for a car
        self._following = Follow()
        gui, scene = server.gui, server.scene
        gui.configure_theme(control_width="large", show_logo=False, show_share_button=False)
        gui.main_panel.dock_right()
        scene.set_up_direction("+z")
        scene.add_grid(
            f"{self._root}/grid", 2000.0, 2000.0, cell_size=1.0, section_size=10.0,
            cell_color=(232, 232, 232), section_color=(205, 205, 205),
            infinite_grid=True, fade_distance=150.0, shadow_opacity=0.0,
            position=(0.0, 0.0, -BELOW_M),
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
            f"{self._root}/camera",
            FIELD_OF_VIEW,
            1.6,
            scale=FRUSTUM_M,
            color=COLOURS["fused"],
            visible=False,
        )
        self._ellipsoid = scene.add_icosphere(
            f"{self._root}/position_3_sigma", 1.0, COLOURS["fused"], opacity=0.25, visible=False,
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
        if not self.history.count:
            return
        number = self._next(now_s)
        new = self.history.count > self._drawn
        with self._server.atomic():
            if new:
                self._extend_paths()
            if self._size is None:
                self._fit(now_s)
            if number == self._number and not (new and self._pause.value):
                return
            scene = self.history[number]
            self._slider.max = max(self.history.count - 1, 1)
            if number != self._number:
                self._number = number
                if not self._pause.value:
                    self._slider.value = number
                self._show(scene, now_s)
                if now_s - self._plotted_s >= PLOT_PERIOD_S or self._pause.value:
                    self._plotted_s = now_s
                    self._plot(number)

    def _next(self, now_s: float) -> int:
        """The number of the scene to be shown."""
        history, last = self.history, self.history.count - 1
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
        for scene in self.history.since(self._drawn):
            for name, T in scene.poses.items():
                if name not in self._paths:
                    self._paths[name] = PathChunks(self._server, name, self._root)
                self._paths[name].add(T[:3, 3])
        self._drawn = self.history.count
        for path in self._paths.values():
            path.send()

    def _show(self, scene: Scene, now_s: float) -> None:
        T = next((scene.poses[n] for n in ("fused", "odometry", "gyro") if n in scene.poses), None)
        seconds = (scene.stamp_ns - self.history[0].stamp_ns) * 1e-9
        self._head.content = _head(scene, seconds)
        self._words.content = _words(scene)
        data = self.history.picture(self._number)
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
            self._following.move(self._server.get_clients().values(), position, now_s)

    def _show_ellipsoid(self, Sigma: Array, position: Array) -> None:
        variances, axes = np.linalg.eigh(Sigma)
        if np.linalg.det(axes) < 0.0:
            axes[:, 0] *= -1.0
        radii = np.maximum(SIGMAS * np.sqrt(np.maximum(variances, 0.0)), LEAST_RADIUS_M)
        # Who does not know where it is would fill the page.
        self._ellipsoid.visible = bool(radii.max() <= MOST_RADIUS_M)
        self._ellipsoid.scale = tuple(radii.tolist())
        self._ellipsoid.wxyz = lie.quaternion_from_matrix(axes)
        self._ellipsoid.position = position

    def _fit(self, now_s: float) -> None:
        """Draw small what moves slowly, once it is known how fast it is."""
        scenes = self.history.window(self.history.count - 1, WINDOW_S)
        paths = [
            [s.poses[n][:3, 3] for s in scenes if n in s.poses] for n in ("fused", "odometry")
        ]
        points = max(paths, key=len)
        if len(scenes) < TELLING or len(points) < 2:
            return
        seconds = (scenes[-1].stamp_ns - scenes[0].stamp_ns) * 1e-9
        metres = float(np.linalg.norm(np.diff(points, axis=0), axis=1).sum())
        self._size = float(np.clip(metres / max(seconds, 1e-3) / CAR_M_S, NEAREST, 1.0))
        self._frustum.scale = FRUSTUM_M * self._size
        self._following.come_nearer(self._server, self._size, now_s)

    def _plot(self, end: int) -> None:
        scenes = self.history.window(end, WINDOW_S)
        scenes = scenes[:: -(-len(scenes) // MOST_SAMPLES)]
        names: dict[str, dict[str, None]] = {}
        for scene in scenes:
            for plot, numbers in scene.numbers.items():
                names.setdefault(plot, {}).update(dict.fromkeys(numbers))
        begin_ns = self.history[0].stamp_ns
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
