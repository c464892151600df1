"""`hydranet view [RUN|BAG]`: a page in the browser, of a running system or of what is recorded."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hydranet_ros.cli.arguments import Parser, add_address, add_command
from hydranet_ros.errors import require

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands
    from hydranet_ros.view.page import Page
    from hydranet_ros.view.scene import History

EXAMPLES = """\
  hydranet view                      the nodes that run, by their topics
  hydranet view out/09               what hydranet run --out out/09 has left
  hydranet view demo/recorded        a bag with the results of the nodes
  hydranet run dataset/sequences/09 --view
"""


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser: Parser = add_command(
        commands,
        "view",
        run,
        "show a running system, a run or a bag in the browser",
        "Serve a page with the camera image and its flow, the paths, the covariance, plots and "
        "the state of each source. Without a name it subscribes to the topics of the nodes; else "
        "it shows the folder of hydranet run --out, or a rosbag2 with the results of the nodes.",
        EXAMPLES,
    )
    parser.add_argument("what", metavar="RUN|BAG", nargs="?", help="default: the running nodes")
    parser.add_argument("--namespace", default="", help="of the topics of the running nodes")
    add_address(parser)


def run(options: argparse.Namespace) -> int:
    """Open what is to be seen, serve it until Ctrl-C."""
    require("the view", "viser")
    if options.what is None:
        require("the view of running nodes", "rclpy")
        from hydranet_ros.ros.view_node import main

        place = ("-p", f"host:={options.host}", "-p", f"port:={options.port}")
        namespace = ("-r", f"__ns:=/{options.namespace.strip('/')}") if options.namespace else ()
        return main(["--ros-args", *place, *namespace])
    from hydranet_ros.view.recorded import open_recorded

    history = open_recorded(options.what)
    with opened(options, history, str(options.what)):
        wait_for_leave()
    return 0


@contextmanager
def opened(options: argparse.Namespace, history: History, title: str) -> Iterator[Page]:
    """The page, and a line that says where it is and who can see it."""
    from hydranet_ros.view.page import exposure, open_page

    with open_page(history, options.host, options.port, title) as page:
        print(f"view: {page.url}, {exposure(options.host)}", file=sys.stderr, flush=True)
        yield page


def wait_for_leave() -> None:
    """Wait until Ctrl-C."""
    if sys.stderr.isatty():
        print("Ctrl-C ends it", file=sys.stderr)
    threading.Event().wait()
