"""What several commands share on the command line: sources, settings, output, checked numbers.

Nothing heavy is imported here, nor at the top of a command's file: `hydranet --help` and wrong
arguments answer at once. A command imports what it computes with in `run`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hydranet_ros.errors import HydraNetError, printable

if TYPE_CHECKING:
    from hydranet_ros.datasets.source import Source
    from hydranet_ros.settings import Configuration

    Commands = argparse._SubParsersAction["Parser"]
    C = TypeVar("C", bound=Configuration)

STREET = "street"
CAMERAS = ("mono", "stereo")
RENAMED_OPTIONS = {"--max-frames": "--frames", "--mono": "--cameras mono"}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2; an option of version 0.1 with what to write instead."""
        for old, new in RENAMED_OPTIONS.items():
            if old in message.split():
                message += f"; {old} is {new} since 1.0"
        self.exit(2, printable(f"{self.prog}: {message} (see {self.prog} --help)") + "\n")


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    text: str,
    description: str,
    examples: str,
) -> Parser:
    """Declare a command; its arguments are added to what this returns.

    `run` gives the exit code where a result may be judged bad; None is 0.
    """
    parser: Parser = commands.add_parser(
        name,
        help=text,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


# --- numbers -------------------------------------------------------------------------------------


def whole_number(least: int = 1, most: int = 2**31 - 1) -> Callable[[str], int]:
    """The type of an argument: a whole number from `least` to `most`."""

    def convert(text: str) -> int:
        if not text.isdecimal() or len(text) > 20 or not least <= int(text) <= most:
            beyond = text.isdecimal() and (len(text) > 20 or int(text) > most)
            words = f"at most {most}" if beyond else f"at least {least}"
            raise argparse.ArgumentTypeError(f"must be a whole number of {words}, got '{text}'")
        return int(text)

    return convert


def number(
    above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> Callable[[str], float]:
    """The type of an argument: a finite number within bounds."""
    words = [
        f" above {above:g}" if above > -math.inf else "",
        f" of at least {least:g}" if least > -math.inf else "",
        f" up to {most:g}" if most < math.inf else "",
    ]

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and above < value and least <= value <= most):
            raise argparse.ArgumentTypeError(f"must be a number{''.join(words)}, got '{text}'")
        return value

    return convert


# --- sources -------------------------------------------------------------------------------------


def add_source(
    parser: Parser, what: str = "source", optional: bool = True, many: bool = False
) -> None:
    """Declare SOURCE, or several of them: then a list."""
    text = (
        "a folder in the layout of KITTI, EuRoC, TUM RGB-D or 7-Scenes, a rosbag2, or 'street', "
        "the simulated one"
    )
    if many:
        text += "; several are run at once (default: street)"
        parser.add_argument(what, metavar=what.upper(), nargs="*", default=[STREET], help=text)
    elif optional:
        text += " (default: street)"
        parser.add_argument(what, metavar=what.upper(), nargs="?", default=STREET, help=text)
    else:
        parser.add_argument(what, metavar=what.upper(), help=text)


def add_poses(parser: Parser) -> None:
    """Declare --poses."""
    parser.add_argument(
        "--poses",
        metavar="FILE",
        help="the true poses of the camera (default: those of the folder's layout, for KITTI "
        "SOURCE/poses.txt or ../../poses/NN.txt)",
    )


def add_camera(parser: Parser) -> None:
    """Declare --camera."""
    parser.add_argument(
        "--camera",
        metavar="FILE",
        help="calibration of the one camera of a folder: a camera_info YAML (default: its own)",
    )


def add_topics(parser: Parser) -> None:
    """Declare --left-topic, --right-topic and --depth-topic."""
    parser.add_argument("--left-topic", metavar="TOPIC", help="of a bag (default: by its name)")
    parser.add_argument("--right-topic", metavar="TOPIC", help="of a bag (default: by its name)")
    parser.add_argument(
        "--depth-topic", metavar="TOPIC", help="of a bag, for --cameras rgbd, with --left-topic"
    )


def add_frames(parser: Parser, least: int = 2, default: int | None = None) -> None:
    """Declare --frames."""
    text = "stop after N frames" + ("" if default is None else " (default: %(default)s)")
    parser.add_argument(
        "--frames", type=whole_number(least), default=default, metavar="N", help=text
    )


def open_chosen(options: argparse.Namespace, cameras: str = "stereo") -> Source:
    """The source that the arguments name."""
    from hydranet_ros.datasets.source import open_source

    return open_source(
        options.source,
        getattr(options, "poses", None),
        options.frames,
        getattr(options, "left_topic", None),
        getattr(options, "right_topic", None),
        cameras,
        getattr(options, "camera", None),
        getattr(options, "depth_topic", None),
    )


@contextmanager
def refused_frames(source: str, stamp_ns: int) -> Iterator[None]:
    """Name the frame that an estimator refuses: too small, of another size, beyond its numbers."""
    import cv2

    try:
        yield
    except (ValueError, ArithmeticError, cv2.error) as error:
        reason = " ".join(str(error).split())
        raise HydraNetError(f"{source}: frame at {stamp_ns * 1e-9:.3f} s: {reason}") from error


def add_imu(parser: Parser) -> None:
    """Declare --imu."""
    parser.add_argument(
        "--imu",
        metavar="simulated|FILE",
        help="an IMU: simulated from the true poses, or recorded: rows of time, rates in rad/s, "
        "accelerations, in the axes of the base (setting wheels.base_from_camera) or EuRoC's",
    )


# --- the network ---------------------------------------------------------------------------------


def add_network(parser: Parser, cameras: str | None = None, depth: bool = False) -> None:
    """Declare --weights, --device and, where there is a default for it, --cameras."""
    if cameras is not None:
        parser.add_argument(
            "--cameras",
            choices=(*CAMERAS, "rgbd") if depth else CAMERAS,
            help=f"what the gyro looks with: the left camera, or both (default: {cameras})"
            + ("; rgbd: one camera with depth, for the odometry too" if depth else ""),
        )
    parser.add_argument(
        "--weights", metavar="FILE", help="of the network (default: those that ship)"
    )
    parser.add_argument("--device", help="of the network: auto, numpy, cpu, cuda or cuda:N")


def network_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What --cameras, --weights and --device say, as settings of a pipeline; None: not given."""
    names = ("cameras", "weights", "device")
    return {f"gyro.{name}": getattr(options, name, None) for name in names}


# --- settings ------------------------------------------------------------------------------------


def add_settings(parser: Parser, file: str = "FILE", default: str | None = None) -> None:
    """Declare --config, --set and --dump-config."""
    text = "settings in YAML, e.g. the config.yaml of an earlier result"
    if default is not None:
        text = f"default, paper, or a YAML file (default: {default})"
    parser.add_argument("--config", metavar=file, default=default, help=text)
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change one setting, e.g. --set fusion.window_size=20; may be repeated",
    )
    parser.add_argument(
        "--dump-config", action="store_true", help="print the settings as YAML, and end"
    )


def chosen_settings(
    options: argparse.Namespace, base: C, shorthands: Mapping[str, Any] | None = None
) -> C:
    """`base`, then --config, then other options (None: not given), then --set."""
    from hydranet_ros.settings import configured, update

    given = {name: value for name, value in (shorthands or {}).items() if value is not None}
    try:
        config = update(configured(base, options.config), given)
    except ValueError as error:
        raise HydraNetError(str(error)) from None
    return configured(config, None, options.assignments)


def dumped(options: argparse.Namespace, config: Configuration) -> bool:
    """Print the settings where --dump-config asks for them; whether it did."""
    if options.dump_config:
        from hydranet_ros.settings import to_yaml

        print(to_yaml(config), end="")
    return bool(options.dump_config)


# --- output --------------------------------------------------------------------------------------


def add_json(parser: Parser) -> None:
    """Declare --json."""
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def add_view(parser: Parser) -> None:
    """Declare --view, --host and --port."""
    parser.add_argument("--view", action="store_true", help="show it in the browser meanwhile")
    add_address(parser)


def add_address(parser: Parser) -> None:
    """Declare --host and --port of the page."""
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where the page is served (default: %(default)s, this machine only; 0.0.0.0 lets "
        "everybody in who reaches it: there is no password)",
    )
    parser.add_argument(
        "--port",
        type=whole_number(1, 65535),
        default=8080,
        metavar="N",
        help="of the page; the next free one where it is taken (default: %(default)s)",
    )


def add_out(parser: Parser, text: str = "write the results there") -> None:
    """Declare --out."""
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)
