"""The `hydranet` command. Bad input is one line on stderr and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hydranet_ros import __version__
from hydranet_ros.cli import bench, demo, evaluate, experiment, fuse, kitti2bag, play, run, train
from hydranet_ros.cli.arguments import Parser
from hydranet_ros.errors import HydraNetError

COMMANDS = (demo, run, fuse, evaluate, train, experiment, kitti2bag, play, bench)


def parser() -> Parser:
    """The whole command line; each command adds its own arguments."""
    root = Parser(
        prog="hydranet", description="Rotation from a camera with a covariance, fused with VO."
    )
    root.add_argument("--version", action="version", version=f"hydranet_ros {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, or 2 for input that cannot be used."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except HydraNetError as error:
        print(f"hydranet {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"hydranet {options.command}: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
