"""The `hydranet` command. Bad input is one line on stderr and exit code 2.

Ctrl-C, SIGTERM and SIGHUP end every command alike: within three seconds, with exit code 130, and
with nothing left behind. A reader that has seen enough (`| head`) ends it with code 141.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from hydranet_ros import __version__
from hydranet_ros.cli import (
    bench,
    benchmark,
    demo,
    doctor,
    evaluate,
    experiment,
    fuse,
    kitti2bag,
    play,
    report,
    run,
    train,
    view,
)
from hydranet_ros.cli.arguments import Parser
from hydranet_ros.errors import HydraNetError, printable
from hydranet_ros.files import remove_unfinished

COMMANDS = (
    *(demo, run, fuse, evaluate, report, view, train, experiment),
    *(benchmark, bench, kitti2bag, play, doctor),
)
BAD_INPUT, INTERRUPTED, NO_READER = 2, 130, 141
WORKERS_GRACE_S, GRACE_S = 1.0, 2.5


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
    """Run one command; the exit code is 0, or tells why it ended before."""
    name = "hydranet"
    try:
        with _interruptible(ends=arguments is None), _checked_output():
            options = parser().parse_args(_texts(arguments))
            name = f"hydranet {options.command}"
            code: int | None = options.run(options)
    except HydraNetError as error:
        return _ended(BAD_INPUT, f"{name}: {error}")
    except BrokenPipeError:
        _drop_output()
        return NO_READER
    except OSError as error:
        _drop_output()
        where = "the output" if error.filename is None else error.filename
        return _ended(BAD_INPUT, f"{name}: {where}: {error.strerror or error}")
    except MemoryError:
        return _ended(BAD_INPUT, f"{name}: there is not enough memory for this")
    except KeyboardInterrupt:
        return _ended(INTERRUPTED, f"{name}: interrupted")
    return code or 0


def _texts(arguments: Sequence[str] | None) -> list[str]:
    given = list(sys.argv[1:] if arguments is None else arguments)
    for text in given:
        if "\0" in text:
            raise HydraNetError(f"an argument has a NUL in it: {text}")
    return given


def _ended(code: int, line: str) -> int:
    with suppress(OSError):
        print(printable(line), file=sys.stderr)
    return code


# --- output --------------------------------------------------------------------------------------


@contextmanager
def _checked_output() -> Iterator[None]:
    """Print whatever the terminal cannot show as escapes; find out now if it was not written."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def _drop_output() -> None:
    """Let what is still to be printed go nowhere, or Python would complain of it at its end."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- signals -------------------------------------------------------------------------------------


@contextmanager
def _interruptible(ends: bool) -> Iterator[None]:
    """Take SIGTERM and SIGHUP for Ctrl-C; `ends` where the process is to end after this.

    Python tells of a signal when the call that it is in returns. For calls that do not, and for
    worker processes that are waited for, a thread hears of it at once, and ends everything if
    that has not happened in GRACE_S.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    known = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heard = {n for n, handler in known.items() if handler not in (signal.SIG_IGN, None)}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    threading.Thread(target=_end_in_time, args=(reader, heard), daemon=True).start()
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    interrupted = False
    try:
        for number in heard:
            signal.signal(number, interrupt)
        yield
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        for number in heard:
            signal.signal(number, known[number])
        signal.set_wakeup_fd(woken)
        if not (ends and interrupted):  # Python's own end may have to wait as well
            os.close(writer)


def _end_in_time(reader: int, heard: set[signal.Signals]) -> None:
    """First the worker processes, which may be what is waited for; then this one."""
    steps: list[float] = []
    while True:
        left = max(0.0, steps[0] - time.monotonic()) if steps else None
        if not select.select([reader], [], [], left)[0]:
            steps.pop(0)
            for child in multiprocessing.active_children():
                child.kill()
            if not steps:
                remove_unfinished()
                os.write(2, b"hydranet: interrupted\n")
                os._exit(INTERRUPTED)
            continue
        numbers = os.read(reader, 64)
        if not numbers:
            os.close(reader)
            return
        if not steps and heard.intersection(numbers):
            steps = [time.monotonic() + WORKERS_GRACE_S, time.monotonic() + GRACE_S]


if __name__ == "__main__":
    sys.exit(main())
