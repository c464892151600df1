"""Time the start of the command line against the import of what it cannot do without.

    python benchmarks/start_up.py [--rounds 9] [--modules 15] [--check]

Printed are the median seconds of `python -c "import numpy, cv2"` and of `hydranet --help`, taken
in turns, their ratio, and the modules that take longest to import. With --check, a ratio above
2.5 ends with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from statistics import median

MOST = 2.5
BASELINE = ["-c", "import numpy, cv2"]
HELP = ["-m", "hydranet_ros.cli", "--help"]
# As from a shell: the ROS wheels prepare each process that does not inherit this.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "_ROS_WHEELS_BOOTSTRAP_COMPLETE"
}
LINE = re.compile(r"^import time: +(\d+) \| +(\d+) \| +(\S+)$", re.MULTILINE)


def start(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )


def seconds(words: list[str]) -> float:
    began = time.perf_counter()
    start(words)
    return time.perf_counter() - began


def import_times(words: list[str]) -> list[tuple[int, int, str]]:
    """Microseconds with and without what a module imports in turn, and its name; longest first."""
    lines = LINE.findall(start(["-X", "importtime", *words]).stderr)
    times = {name: (int(whole), int(own), name) for own, whole, name in lines}
    return sorted(times.values(), reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, metavar="N")
    parser.add_argument("--modules", type=int, default=15, metavar="N", help="how many to print")
    parser.add_argument("--check", action="store_true", help=f"fail above {MOST}")
    options = parser.parse_args()
    for words in (BASELINE, HELP):  # files are read from disk, and compiled
        start(words)
    times = [(seconds(BASELINE), seconds(HELP)) for _ in range(options.rounds)]
    baseline, helped = (median(each) for each in zip(*times, strict=True))
    print(f"import numpy, cv2   {baseline:.3f} s")
    print(f"hydranet --help     {helped:.3f} s")
    print(f"ratio               {helped / baseline:.2f} (at most {MOST})")
    print("\n   whole    alone  module")
    for whole, own, name in import_times(HELP)[: options.modules]:
        print(f"{whole / 1e3:5.0f} ms {own / 1e3:5.0f} ms  {name}")
    return int(options.check and helped / baseline > MOST)


if __name__ == "__main__":
    sys.exit(main())
