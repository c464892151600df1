"""What a player plays: the messages of a bag as they are, or those made of other sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Full, Queue
from threading import Event, Thread
from typing import TypeVar

from hydranet_ros.datasets.bag_files import read_messages, topics
from hydranet_ros.datasets.bag_messages import (
    COMPRESSED_IMAGE,
    IMAGE,
    Message,
    recorded,
    topic_types,
)
from hydranet_ros.datasets.source import STREET, is_bag, open_source
from hydranet_ros.errors import FileError

T = TypeVar("T")

# Some seconds of images.
READ_AHEAD = 200
_POLL_S = 0.2


@dataclass(frozen=True)
class Playlist:
    """Messages in order of time. `slow`: they take longer to make than to play."""

    name: str
    types: dict[str, str]
    messages: Callable[[], Iterator[Message]]
    slow: bool = False

    @property
    def frame_topic(self) -> str | None:
        """The topic whose messages count as frames: the first with images, by name."""
        images = [t for t, kind in self.types.items() if kind in (IMAGE, COMPRESSED_IMAGE)]
        return min(images, default=None)


def open_playlist(name: str) -> Playlist:
    """A rosbag2, a KITTI folder, or the simulated street."""
    if is_bag(name):
        types = topics(name)
        if not types:
            raise FileError(name, "has no messages to play")
        return Playlist(name, types, lambda: read_messages(name))
    source = open_source(name)
    return Playlist(name, topic_types(source), lambda: recorded(source), slow=name == STREET)


def read_ahead(items: Iterator[T], size: int = READ_AHEAD) -> Iterator[T]:
    """The same items, made by a thread, so that a late one does not hold up the one before."""
    ready: Queue[tuple[T | None, BaseException | None]] = Queue(size)
    given_up = Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not given_up.is_set():
            with suppress(Full):
                ready.put((item, error), timeout=_POLL_S)
                return

    def work() -> None:
        try:
            for item in items:
                put(item, None)
                if given_up.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # noqa: BLE001 (handed to the one who reads)
            put(None, error)

    thread = Thread(target=work, name="read ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None
            yield item
    finally:
        given_up.set()
        thread.join()
