"""`hydranet run A B C --jobs N`: several sources at once, each in a process of its own.

A process does what `hydranet run` does with its source alone, and gives the same bytes. One that
fails, or is ended from outside, is named; the others go on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydranet_ros.errors import HydraNetError, printable

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from hydranet_ros.cli.run import Outcome
    from hydranet_ros.datasets.source import Source
    from hydranet_ros.geometry.camera import Frame

_OF_ONE = ("view", "poses", "imu", "dump_config")  # arguments that belong to one source


@dataclass(eq=False)
class _Job:
    """A source, and what its process has said so far."""

    name: str
    options: argparse.Namespace
    process: SpawnProcess | None = None
    connection: Connection | None = None
    outcome: Outcome | None = None
    failure: str | None = None


def run_many(options: argparse.Namespace) -> None:
    """Run every source, at most `jobs` at once; print what each gave, in their order."""
    jobs = _jobs(options)
    try:
        _run(jobs, options.jobs or os.cpu_count() or 1)
    finally:
        _end(jobs)
    if options.json:
        print(json.dumps({job.name: job.outcome.printed for job in jobs if job.outcome}))
    else:
        texts = [f"{job.name}: {job.outcome.text}" for job in jobs if job.outcome]
        print("\n\n".join(texts))
    failed = [f"{job.name}: {job.failure}" for job in jobs if job.failure is not None]
    for line in failed[:-1]:
        print(printable(f"run: {line}"), file=sys.stderr)
    if failed:
        raise HydraNetError(f"{failed[-1]} ({len(failed)} of {len(jobs)} failed)")


def _jobs(options: argparse.Namespace) -> list[_Job]:
    for name in _OF_ONE:
        if getattr(options, name):
            raise HydraNetError(
                f"--{name.replace('_', '-')} is for one SOURCE, got {len(options.source)}"
            )
    if options.odometry not in (None, "own", "wheels"):
        raise HydraNetError(f"--odometry FILE is for one SOURCE, got {len(options.source)}")
    jobs: list[_Job] = []
    for source in options.source:
        name = Path(source).resolve().name
        if any(job.name == name for job in jobs):
            raise HydraNetError(f"two sources are called {name!r}: run them one after the other")
        out = None if options.out is None else options.out / name
        own = {**vars(options), "source": source, "out": out}
        jobs.append(_Job(name, argparse.Namespace(**own)))
    return jobs


def _run(jobs: list[_Job], at_once: int) -> None:
    from tqdm import tqdm

    context = multiprocessing.get_context("spawn")
    waiting, running = list(jobs), list[_Job]()
    with tqdm(desc="run", unit="frame", total=0, disable=not sys.stderr.isatty()) as bar:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                job.connection, theirs = context.Pipe(duplex=False)
                job.process = context.Process(target=_work, args=(job.options, theirs))
                job.process.start()
                theirs.close()
                running.append(job)
            ready = wait([job.connection for job in running if job.connection is not None])
            for job in [each for each in running if each.connection in ready]:
                if not _heard(job, bar):
                    running.remove(job)


def _heard(job: _Job, bar: Any) -> bool:
    """Take in what a process says; False where it has nothing more to say."""
    assert job.connection is not None
    assert job.process is not None
    try:
        kind, value = job.connection.recv()
    except EOFError:
        job.process.join()
        if job.outcome is None and job.failure is None:
            code = job.process.exitcode or 0
            what = f"signal {-code}" if code < 0 else f"exit code {code}"
            job.failure = f"its process ended with {what}"
        return False
    if kind == "frames":
        bar.total += value
        bar.refresh()
    elif kind == "frame":
        bar.update(value)
    elif kind == "outcome":
        job.outcome = value
        if value.interrupted:
            job.failure = "interrupted"
    else:
        job.failure = value
    return True


def _end(jobs: list[_Job]) -> None:
    """Interrupt what still runs: it writes what it has."""
    alive = [job.process for job in jobs if job.process is not None and job.process.is_alive()]
    for process in alive:
        process.terminate()
    for process in alive:
        process.join()


# --- in the process of one source ----------------------------------------------------------------


def _work(options: argparse.Namespace, connection: Connection) -> None:
    """`hydranet run` with one source; what it would print is sent instead."""
    from hydranet_ros.cli.run import run_one

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    # Ctrl-C reaches every process of a terminal; the first one passes it on, once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, interrupt)

    def watched(source: Source) -> Iterator[Frame]:
        connection.send(("frames", len(source)))
        for frame in source:
            yield frame
            connection.send(("frame", 1))

    try:
        connection.send(("outcome", run_one(options, watched)))
    except HydraNetError as error:
        connection.send(("failure", str(error)))
    except MemoryError:
        connection.send(("failure", "there is not enough memory for this"))
    except OSError as error:
        connection.send(("failure", f"{error.filename or 'a file'}: {error.strerror or error}"))
    except KeyboardInterrupt:
        connection.send(("failure", "interrupted"))
