"""The pictures of the pages, made from the simulation alone: `make pictures`.

Each is written as docs/pictures/NAME.png, below 300 kB: the acts of the demonstration (act_1 to
act_3), the flow with its trusted cells in a room (flow), errors with 3 sigma on the simulated
street (errors), and the page in the browser (view; where Chromium is).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 300_000
WIDTH = 960


def hydranet(*words: str) -> None:
    """Run a command of the package."""
    subprocess.run([sys.executable, "-m", "hydranet_ros.cli", *words], check=True)


def keep(name: str, picture: np.ndarray) -> None:
    """Write a picture: not wider than WIDTH, with as few colours as it takes to be small."""
    if picture.shape[1] > WIDTH:
        size = WIDTH, round(picture.shape[0] * WIDTH / picture.shape[1])
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    for step in (1, 4, 8, 16, 32):
        shown = (picture // step) * step if step > 1 else picture
        _, data = cv2.imencode(".png", shown, [cv2.IMWRITE_PNG_COMPRESSION, 9])
        if len(data) < MOST_BYTES:
            (PICTURES / f"{name}.png").write_bytes(data.tobytes())
            print(f"{name}.png: {len(data) / 1e3:.0f} kB")
            return
    raise SystemExit(f"{name}: {len(data) / 1e3:.0f} kB, at most {MOST_BYTES / 1e3:.0f}")


def flow() -> np.ndarray:
    """The flow over a simulated room: trusted cells green, others red."""
    from hydranet_ros.geometry.camera import Frame
    from hydranet_ros.gyro.visual_gyro import VisualGyro
    from hydranet_ros.simulation import Building, BuildingConfig

    world = Building(BuildingConfig(seed=5, frames=8, width=640, height=480, place="office"))
    gyro = VisualGyro(world.camera.left)
    for index, stamp in enumerate(world.stamps_ns):
        image = world.photograph(index)
        gyro.update(Frame(int(stamp), image))
    shown = gyro.picture(image)
    assert shown is not None
    return shown


def view(run: Path, folder: Path) -> np.ndarray:
    """The page of a run in a headless Chromium."""
    sys.path.insert(0, str(ROOT / "test" / "view"))
    from browser import Browser

    from hydranet_ros.view.page import open_page
    from hydranet_ros.view.recorded import open_recorded

    with open_page(open_recorded(run), port=8600, title="hydranet") as page:
        browser = Browser(folder, 1400, 860)
        try:
            browser.open(page.url)
            browser.wait_for_text("ok")
            browser.wait(12.0)
            close = "document.querySelector('.mantine-Notification-closeButton')?.click()"
            browser.evaluate(close)
            browser.wait(1.5)
            data = browser.screenshot(folder / "view.png")
        finally:
            browser.close()
    return np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR))


def main() -> None:
    """Make all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, help="folder of a demonstration that has been played")
    options = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        demo = options.demo or Path(scratch) / "demo"
        if options.demo is None:
            hydranet("demo", "--out", str(demo))
        for number in (1, 2, 3):
            keep(f"act_{number}", cv2.imread(str(demo / f"act_{number}.png")))
        keep("flow", flow())
        run = Path(scratch) / "street"
        hydranet("run", "street", "--frames", "150", "--odometry", "wheels", "--out", str(run))
        keep("errors", cv2.imread(str(run / "plots" / "errors_over_time.png")))
        keep("view", view(demo / "recorded_1", Path(scratch)))


if __name__ == "__main__":
    main()
