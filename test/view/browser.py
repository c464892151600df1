"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--remote-debugging-port=0"),
]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt install chromium")


class Browser:
    """One page; what it asks for and what it complains of is kept."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 800) -> None:
        from websockets.sync.client import connect

        self.errors: list[str] = []
        self._profile, self._count = folder / "profile", 0
        self._log = folder / "net.json"
        self._process = subprocess.Popen(
            [
                str(CHROMIUM),
                *OPTIONS,
                f"--user-data-dir={self._profile}",
                f"--window-size={width},{height}",
                f"--log-net-log={folder / 'net.json'}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port = self._port()
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
            pages = [each for each in json.load(answer) if each["type"] == "page"]
        self._socket = connect(pages[0]["webSocketDebuggerUrl"], max_size=None, ping_interval=None)
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _port(self) -> int:
        file, until = self._profile / "DevToolsActivePort", time.monotonic() + 30.0
        while time.monotonic() < until:
            if file.is_file() and file.read_text():
                return int(file.read_text().split()[0])
            time.sleep(0.1)
        raise TimeoutError("Chromium did not start in 30 s")

    def close(self) -> None:
        if self._process.poll() is None:
            self.call("Browser.close")
        self._socket.close()
        self._process.wait(20.0)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60.0))
            if message.get("id") == self._count:
                assert "error" not in message, message
                return message["result"]
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        method, about = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] == "error":
            self.errors.append(str([each.get("value") for each in about["args"]]))

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.evaluate("1")
            time.sleep(0.1)

    def wait_for_text(self, text: str, seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while text not in self.text():
            assert time.monotonic() < until, f"no {text!r} in {self.text()!r}"
            time.sleep(0.2)

    def evaluate(self, code: str) -> Any:
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        return found["result"].get("value")

    def text(self) -> str:
        return self.evaluate("document.body ? document.body.innerText : ''") or ""

    def screenshot(self, path: Path) -> bytes:
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data

    def hosts(self, page: str) -> set[str]:
        """Whom a page asked, its workers and web sockets too; not what the browser does itself."""
        asked = set()
        for line in self._log.read_text().splitlines():
            if '"initiator"' in line and '"url"' in line:
                about = json.loads(line.strip().rstrip(",").removesuffix("],"))["params"]
                if about["initiator"].startswith(page):
                    asked.add(str(urlsplit(about["url"]).hostname))
        return asked
