"""Time the forward pass of the networks, one frame at a time, as a node runs them.

    python benchmarks/network.py [--repeats 100] [--preset default --preset paper]

Printed are parameters and the median and 90th percentile of `Predictor.predict_inputs`, combining
the heads included, on the CPU with torch's own number of threads.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from hydranet_ros.network import HydraNet, Predictor, preset


def forward_ms(name: str, repeats: int) -> tuple[int, float, float]:
    """Parameters, median and 90th percentile in ms."""
    model = HydraNet(preset(name))
    predictor = Predictor(model, device="cpu")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, *model.config.input_shape)).astype(np.float32) * 0.03
    times = []
    for _ in range(repeats + 5):
        start = time.perf_counter()
        predictor.predict_inputs(x)
        times.append(1e3 * (time.perf_counter() - start))
    warm = times[5:]
    return model.parameter_count(), float(np.median(warm)), float(np.percentile(warm, 90))


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
