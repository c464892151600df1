"""CPU and traffic of the page at 10 Hz, with a real headless Chromium.

    python benchmarks/view.py --seconds 600
    python benchmarks/view.py --seconds 50 --before 600     as it is after ten minutes

Prints, for each tenth of the time, the CPU per frame of this process (the page, the making of the
frames, and the relay that counts), and the bytes to the browser. Neither may grow with the drive.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "test" / "view"))
from browser import Browser

from hydranet_ros.geometry.camera import T_BASE_OPTICAL
from hydranet_ros.view.page import open_page
from hydranet_ros.view.scene import History, Scene

RATE_HZ, SPEED = 10.0, 1.0


class Relay:
    """Hand bytes on between a browser and the page, and count those to the browser."""

    def __init__(self, port: int) -> None:
        self.sent = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            browser, _ = self._listener.accept()
            page = socket.create_connection(("127.0.0.1", self._target))
            for begin, end, counted in ((browser, page, False), (page, browser, True)):
                threading.Thread(
                    target=self._pass, args=(begin, end, counted), daemon=True
                ).start()

    def _pass(self, begin: socket.socket, end: socket.socket, counted: bool) -> None:
        try:
            while data := begin.recv(65536):
                self.sent += len(data) * counted
                end.sendall(data)
        except OSError:
            pass  # the browser was closed
        end.close()


def made(i: int, rng: np.random.Generator) -> Scene:
    T = np.eye(4)
    T[:3, 3] = SPEED * i / RATE_HZ, np.sin(0.01 * i), 0.0
    T = T @ T_BASE_OPTICAL
    lines = dict(zip("xyz", rng.normal(size=3).tolist(), strict=True))
    return Scene(
        round(i * 1e9 / RATE_HZ),
        {"truth": T, "odometry": T, "gyro": T, "fused": T},
        np.diag(rng.uniform(0.01, 0.1, 3)),
        dict.fromkeys(("error (deg)", "NIS", "bias (deg/s)", "latency (ms)"), lines),
        {"odometry": "ok", "gyro": "ok", "fusion": "ok"},
        {"bias (deg/s)": f"{rng.normal():.3f}"},
    )


def fill(history: History, seconds: float, rng: np.random.Generator) -> float:
    """CPU seconds per frame over so much time."""
    image = rng.integers(60, 190, (20, 60), dtype=np.uint8).repeat(10, 0).repeat(10, 1)
    frames = round(seconds * RATE_HZ)
    cpu, begin = time.process_time(), time.monotonic()
    for i in range(frames):
        history.add(made(history.count, rng), np.roll(image, 7 * history.count, 1))
        time.sleep(max(0.0, begin + (i + 1) / RATE_HZ - time.monotonic()))
    return (time.process_time() - cpu) / frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument(
        "--before", type=float, default=0.0, help="seconds of a drive that the page begins with"
    )
    options = parser.parse_args()
    rng, history = np.random.default_rng(0), History()
    with open_page(history, port=8300) as page:
        for _ in range(round(options.before * RATE_HZ)):
            history.add(made(history.count, rng))
        relay = Relay(int(page.url.rpartition(":")[2]))
        idle = fill(history, 10.0, rng)
        print(f"after {options.before:g} s of the drive")
        print(f"no browser: {1e3 * idle:.2f} ms of CPU per frame")
        browser = Browser(Path(tempfile.mkdtemp()))
        browser.open(relay.url)
        fill(history, 10.0, rng)
        print(" time s   ms of CPU per frame   kB/s to the browser")
        for part in range(10):
            sent = relay.sent
            cpu = fill(history, options.seconds / 10.0, rng)
            rate = (relay.sent - sent) / (options.seconds / 10.0) / 1e3
            when = (part + 1) * options.seconds / 10.0
            print(f"{when:7.0f} {1e3 * cpu:21.2f} {rate:21.1f}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
