"""The page in a real browser, and the history behind it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("viser", reason="no viser: pip install 'hydranet_ros[view]'")

from browser import Browser, needs_chromium

from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import T_BASE_OPTICAL
from hydranet_ros.geometry.estimates import RelativeRotation
from hydranet_ros.view import scene as scenes_module
from hydranet_ros.view import words as words_module
from hydranet_ros.view.arrivals import ODOMETRY, ROTATION, Arrivals
from hydranet_ros.view.page import Page, exposure, open_page
from hydranet_ros.view.parts import Follow, PathChunks, axis_range
from hydranet_ros.view.recorded import open_recorded
from hydranet_ros.view.scene import History, Scene


def made(i: int) -> Scene:
    angle = 0.02 * i
    c, s = np.cos(angle), np.sin(angle)
    T = np.eye(4)
    T[:2, :2], T[:3, 3] = [[c, -s], [s, c]], [10.0 * s, 10.0 - 10.0 * c, 0.0]
    T = T @ T_BASE_OPTICAL
    beside = T.copy()
    beside[0, 3] += 0.01 * i
    return Scene(
        i * 100_000_000,
        {"truth": T, "odometry": beside, "gyro": beside, "fused": T},
        np.diag([0.04, 0.02, 0.01]),
        {"rotation error (deg)": {"x": s, "y": c, "z": 0.1, "3 sigma": 1.5}},
        {"odometry": "ok", "gyro": f"lost: frame {i} is blank"},
        {"bias (deg/s)": f"{0.001 * i:.3f}"},
    )


def picture(i: int) -> np.ndarray:
    shown = np.full((120, 400), 90, np.uint8)
    cv2.circle(shown, (5 * i % 400, 60), 20, 255, -1)
    return shown


@pytest.fixture
def live() -> Iterator[History]:
    """A history that grows at 10 Hz."""
    history, stop = History(), Event()

    def grow() -> None:
        while not stop.wait(0.1):
            history.add(made(history.count), picture(history.count))

    thread = Thread(target=grow, daemon=True)
    thread.start()
    yield history
    stop.set()
    thread.join()


def decoded(data: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


@needs_chromium
def test_the_page_shows_a_growing_history(live: History, tmp_path: Path) -> None:
    with open_page(live, port=8230, title="test") as page:
        browser = Browser(tmp_path)
        try:
            browser.open(page.url)
            browser.wait_for_text("is blank")
            browser.wait(3.0)
            first = browser.text()
            shown = decoded(browser.screenshot(tmp_path / "live.png"))
            browser.wait(1.5)
            then = browser.text()
        finally:
            browser.close()
    assert first != then
    for word in ("truth", "odometry", "gyro", "fused", "Follow", "Pause", "Frame", "Screenshot"):
        assert word in then
    assert "share" not in then.lower()
    canvas = shown[160:, :880].reshape(-1, 3).astype(int)
    blue = (canvas[:, 0] - canvas[:, 2] > 60).sum()
    assert blue > 500  # the camera, the fused path, the ellipsoid
    assert browser.errors == []
    assert browser.hosts(page.url) == {"127.0.0.1"}


@needs_chromium
def test_a_recorded_history_plays_and_can_be_searched(tmp_path: Path) -> None:
    history = History(live=False)
    for i in range(300):
        history.add(made(i), picture(i))
    file = tmp_path / "run" / "view.npz"
    file.parent.mkdir()
    file.write_bytes(history.dumps())
    with open_page(open_recorded(file.parent), port=8240) as page:
        browser = Browser(tmp_path)
        try:
            browser.open(page.url)
            browser.wait_for_text("is blank")
            browser.wait(2.0)
            browser.screenshot(tmp_path / "replay.png")
            box = "document.querySelector('input[type=text], input[inputmode=decimal]')"
            browser.evaluate(f"{box}.focus(); {box}.select()")
            browser.call("Input.insertText", text="250")
            browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter")
            browser.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
            browser.wait_for_text("frame 250 is blank")
            browser.wait(1.0)
            assert "frame 250 is blank" in browser.text()  # it does not play on
        finally:
            browser.close()
    assert browser.errors == []


# --- without a browser ---------------------------------------------------------------------------


def test_a_history_is_written_and_read_whole(tmp_path: Path) -> None:
    history = History()
    for i in range(5):
        history.add(made(i), picture(i) if i != 2 else None)
    (tmp_path / "view.npz").write_bytes(history.dumps(without=("nothing",)))
    read = open_recorded(tmp_path)
    assert (read.count, read.live) == (5, False)
    for i in range(5):
        assert read[i].stamp_ns == history[i].stamp_ns
        assert read[i].states == history[i].states
        assert read[i].numbers.keys() == history[i].numbers.keys()
        for plot, lines in history[i].numbers.items():
            assert read[i].numbers[plot] == pytest.approx(lines, rel=1e-5)
        np.testing.assert_allclose(read[i].poses["fused"], history[i].poses["fused"], rtol=1e-6)
        assert read.picture(i) == history.picture(i)
    assert read.picture(2) is None
    assert read.dumps() == history.dumps()
    left_out = tmp_path / "other.npz"
    left_out.write_bytes(history.dumps(without=("rotation error (deg)",)))
    assert History.load(left_out)[0].numbers == {}


def test_what_is_no_run_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(HydraNetError, match=r"hydranet run SOURCE --out DIR"):
        open_recorded(tmp_path)
    with pytest.raises(HydraNetError, match="does not exist"):
        open_recorded(tmp_path / "nothing")
    (tmp_path / "view.npz").write_bytes(History().dumps()[:-30])
    with pytest.raises(HydraNetError, match=r"view\.npz"):
        open_recorded(tmp_path)


def test_a_history_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes_module, "MOST_PICTURE_BYTES", 10_000)
    history = History()
    for i in range(40):
        history.add(made(i), picture(i))
    kept = [i for i in range(40) if history.picture(i) is not None]
    assert 0 < len(kept) < 40
    assert kept[-1] == 39
    assert sum(len(history.picture(i) or b"") for i in kept) <= 10_000
    assert [each.stamp_ns for each in history.window(39, 0.5)] == [
        i * 100_000_000 for i in range(34, 40)
    ]
    assert [each.stamp_ns for each in history.since(38)] == [3_800_000_000, 3_900_000_000]


class Handle:
    def __init__(self, drawn: dict[str, np.ndarray], name: str) -> None:
        object.__setattr__(self, "drawn", drawn)
        object.__setattr__(self, "name", name)

    def __setattr__(self, key: str, value: np.ndarray) -> None:
        assert key == "points"
        self.drawn[self.name] = value

    def remove(self) -> None:
        del self.drawn[self.name]


class Canvas:
    """Keeps the lines that a path sends, and how many in all."""

    def __init__(self) -> None:
        self.drawn: dict[str, np.ndarray] = {}
        self.scene = self

    def add_line_segments(self, name: str, points: np.ndarray, *_: object, **__: object) -> Handle:
        self.drawn[name] = points
        return Handle(self.drawn, name)


def test_a_path_in_chunks_has_every_segment_once() -> None:
    canvas = Canvas()
    path = PathChunks(canvas, "fused")  # type: ignore[arg-type]
    points = np.cumsum(np.random.default_rng(1).uniform(0.1, 1.0, (3000, 3)), axis=0)
    for point in points:
        path.add(point)
        path.send()
    segments = np.concatenate(list(canvas.drawn.values()))
    segments = segments[np.argsort(segments[:, 0, 0])]
    np.testing.assert_allclose(segments[:, 0], points[:-1], rtol=1e-6)
    np.testing.assert_allclose(segments[:, 1], points[1:], rtol=1e-6)
    assert len(canvas.drawn) < 20
    path.add(points[-1] + 1e-3)  # stands
    path.send()
    assert sum(len(each) for each in canvas.drawn.values()) == 2999


def test_an_axis_has_room_and_round_ends() -> None:
    assert axis_range(np.array([0.0, 0.0])) == pytest.approx((-0.01, 0.01))
    for low, high in ((-5.2, 4.1), (0.0, 0.013), (99.0, 101.0), (-3e-5, 2e3)):
        below, above = axis_range(np.array([low, high]))
        assert below < low < high < above
        assert above - below < 3.2 * max(high - low, 0.02)


class Camera:
    """The camera of a browser, as viser tells it."""

    update_timestamp = 1.0

    def __init__(self) -> None:
        self.position, self.look_at = np.array([-9.0, -5.0, 7.0]), np.zeros(3)


class Client:
    client_id = 7

    def __init__(self) -> None:
        self.camera = Camera()


def test_the_camera_follows_and_stays_as_its_user_has_turned_it() -> None:
    client, follow = Client(), Follow()
    clients: Any = [client]
    camera = client.camera
    away = camera.position.copy()
    for i in range(50):
        at = np.array([1.0 * i, 0.0, 0.0])
        follow.move(clients, at, 0.1 * i)
        np.testing.assert_allclose(camera.look_at, at)
        np.testing.assert_allclose(camera.position, at + away)
        if i % 10 == 9:  # told between two of our messages: the camera has come, its aim has not
            camera.look_at = camera.look_at - [0.5, 0.0, 0.0]
            for late in (0.0, 0.1, 0.5):
                follow.move(clients, at, 0.1 * i + late)
            camera.look_at = at
    turned, at = np.array([3.0, 8.0, 6.0]), np.array([60.0, 1.0, 0.0])
    camera.position = camera.look_at + turned
    for step in range(30):
        follow.move(clients, at, 6.0 + 0.1 * step)
    np.testing.assert_allclose(camera.position, at + turned)


def rotation(i: int, angle: float) -> RelativeRotation:
    C = lie.so3_exp(np.array([0.0, angle, 0.0]))
    return RelativeRotation(C, 1e-6 * np.eye(3), (i - 1) * 33_000_000, i * 33_000_000)


def test_the_gyro_turns_by_every_rotation_though_not_every_frame_is_shown() -> None:
    """At 30 Hz every second frame is shown; wheels have stamps of their own."""
    history = History()
    arrivals = Arrivals(history)
    for i in range(1, 61):
        arrivals.keep(ROTATION, i * 33_000_000, rotation(i, 0.01))
        at = np.eye(4)
        at[0, 3] = 0.1 * i
        arrivals.keep(ODOMETRY, i * 33_000_000 - 4_000_000, at @ T_BASE_OPTICAL)
        arrivals.show(i * 33_000_000, at @ T_BASE_OPTICAL)
    assert history.count == 30
    first, last = (history[i].poses["gyro"][:3, :3] for i in (0, 29))
    turned = np.linalg.norm(lie.so3_log(first.T @ last))
    assert turned == pytest.approx(0.01 * 58, abs=1e-9)


def test_another_drive_begins_anew() -> None:
    drives = [History()]

    def begin() -> History:
        drives.append(History())
        return drives[-1]

    arrivals = Arrivals(drives[0], begin)
    for i in range(100):
        arrivals.keep(ODOMETRY, i * 100_000_000, T_BASE_OPTICAL)
        arrivals.show(i * 100_000_000, T_BASE_OPTICAL)
    for i in range(60):  # without odometry
        arrivals.show(i * 100_000_000, T_BASE_OPTICAL)
    assert [each.count for each in drives] == [100, 60]
    assert "odometry" in drives[0][50].poses
    assert all("odometry" not in drives[1][i].poses for i in range(60))


def test_warnings_are_said_in_words() -> None:
    said = words_module._said
    assert said("26 x too_few_features") == "lost: too few features (26 times)"
    assert said("no output for 5 s; 1 x dark") == "lost: dark (once); no output for 5 s"
    assert said("1 x /vo/odometry: not measured") == "/vo/odometry: not measured (once)"


def test_the_page_says_who_can_see_it() -> None:
    assert "this machine only" in exposure("127.0.0.1")
    assert "everybody" in exposure("0.0.0.0")
    with pytest.raises(HydraNetError, match=r"--host 203\.0\.113\.7: is no address"):
        open_page(History(), "203.0.113.7")


def test_adding_never_waits_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Event()
    monkeypatch.setattr(Page, "browsers", property(lambda self: 1))
    monkeypatch.setattr(
        "hydranet_ros.view.page.Drawing.update", lambda self, now_s: blocked.wait(5.0)
    )
    history = History()
    page = open_page(history, port=8250)
    time.sleep(0.3)  # the page hangs
    began = time.monotonic()
    for i in range(50):
        history.add(made(i), picture(i))
    assert time.monotonic() - began < 2.0
    assert history.count == 50
    blocked.set()
    page.close()
