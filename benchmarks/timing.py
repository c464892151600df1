"""How long a piece of work takes, for the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable


def times_ms(work: Callable[[int], object], rounds: int, warm: int = 3) -> list[float]:
    """Of each round but the first ones; the work is told the number of the round."""
    times = []
    for number in range(rounds):
        start = time.perf_counter()
        work(number)
        times.append(1e3 * (time.perf_counter() - start))
    return times[warm:]
