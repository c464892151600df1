"""Write a bag whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Literal

from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import StoragePlugin, Writer

from hydranet_ros.bags.messages import STORE, TRANSFORMS, Message
from hydranet_ros.errors import FileError

STORAGES = ("mcap", "sqlite3")
# Version 8 is the newest that Humble still reads; later distributions read it as well.
VERSION: Literal[8] = 8
_UNSET = QosTime(0, 0)


class BagWriter:
    """Takes messages in; topics are declared as they come."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._connections: dict[str, Connection] = {}
        self.count = 0

    def write(self, message: Message, received_ns: int | None = None) -> None:
        """Append a message, at its own time or at that of its arrival."""
        topic = message.topic
        if topic not in self._connections:
            self._connections[topic] = self._writer.add_connection(
                topic,
                message.type,
                typestore=STORE,
                offered_qos_profiles=[_quality(message.type)],
            )
        at = message.stamp_ns if received_ns is None else received_ns
        self._writer.write(self._connections[topic], at, message.data)
        self.count += 1


def write_bag(
    path: str | PathLike[str], messages: Iterable[Message], storage: str = "mcap"
) -> int:
    """Write a bag and return how many messages it has."""
    with new_bag(path, storage) as bag:
        for message in messages:
            bag.write(message)
    return bag.count


@contextmanager
def new_bag(path: str | PathLike[str], storage: str = "mcap") -> Iterator[BagWriter]:
    """A bag to write into. It appears under its name when it is whole; else nothing remains."""
    target = Path(path)
    check_new(target)
    unfinished = target.with_name(f".{target.name}.unfinished")
    # Left by a process that was killed: nobody else has any use for it.
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        # Under its own name inside, because rosbag2 calls the storage file after the folder.
        whole = unfinished / target.name
        plugin = StoragePlugin[storage.upper()]
        with Writer(whole, version=VERSION, storage_plugin=plugin) as writer:
            yield BagWriter(writer)
        whole.rename(target)
    except OSError as error:
        raise FileError(target, f"cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def check_new(path: Path) -> None:
    """Refuse to write over something."""
    if path.exists() or path.is_symlink():
        raise FileError(path, "exists already: remove it or choose another name")


def _quality(kind: str) -> Qos:
    """Reliable; transforms that never change also for those who come later."""
    latched = kind == TRANSFORMS
    return Qos(
        history=QosHistory.KEEP_LAST,
        depth=1 if latched else 10,
        reliability=QosReliability.RELIABLE,
        durability=QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
        deadline=_UNSET,
        lifespan=_UNSET,
        liveliness=QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=_UNSET,
        avoid_ros_namespace_conventions=False,
    )
