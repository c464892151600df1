"""Time the forward pass of the networks, one frame at a time, as a node runs them.

    python benchmarks/network.py [--repeats 100] [--preset default --preset paper]

Printed are parameters and the median and 90th percentile of `Predictor.predict_inputs`, combining
the heads included, on the CPU with torch's own number of threads.
"""

from __future__ import annotations

import argparse

import numpy as np
from timing import times_ms

from hydranet_ros.gyro.config import preset
from hydranet_ros.gyro.network import HydraNet
from hydranet_ros.gyro.predictor import Predictor


def forward_ms(name: str, repeats: int) -> tuple[int, float, float]:
    """Parameters, median and 90th percentile in ms."""
    model = HydraNet(preset(name))
    predictor = Predictor(model, device="cpu")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, *model.config.input_shape)).astype(np.float32) * 0.03
    times = times_ms(lambda _: predictor.predict_inputs(x), repeats + 5, warm=5)
    return model.parameter_count(), float(np.median(times)), float(np.percentile(times, 90))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--preset", action="append", dest="presets")
    arguments = parser.parse_args()
    for name in arguments.presets or ["default", "paper"]:
        count, median, late = forward_ms(name, arguments.repeats)
        print(f"{name:10s} {count:11,d} parameters  {median:7.2f} ms  (90 %: {late:.2f} ms)")


if __name__ == "__main__":
    main()
