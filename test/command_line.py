"""The command line, run in this process."""

from __future__ import annotations

from hydranet_ros.cli import __main__ as cli


def exit_code(*arguments: str) -> int:
    """Run `hydranet ARGUMENTS`; wrong arguments end in argparse, which exits."""
    try:
        return cli.main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
