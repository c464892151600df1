"""Read and write bags of rosbag2: folders with a metadata.yaml, or .mcap and .db3 files."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Literal

from hydranet_ros.datasets.bag_messages import STORE, TRANSFORMS, Message
from hydranet_ros.errors import FileError, require

require("a bag", "rosbags")

import apsw
from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import Reader, ReaderError, StoragePlugin, Writer

# What rosbags lets through on a damaged file, besides its own error; apsw is its SQLite.
_DAMAGED = (ReaderError, apsw.Error, ValueError, KeyError, IndexError, struct.error)


def topics(path: str | PathLike[str]) -> dict[str, str]:
    """The topics of a bag that have messages, with their types."""
    with _opened(path) as reader:
        return {c.topic: c.msgtype for c in reader.connections if c.msgcount}


def read_messages(path: str | PathLike[str], only: set[str] | None = None) -> Iterator[Message]:
    """The messages of a bag, or of some of its topics, in the order of their times."""
    with _opened(path) as reader:
        wanted = [c for c in reader.connections if only is None or c.topic in only]
        if wanted:
            for connection, at, data in reader.messages(wanted):
                yield Message(connection.topic, connection.msgtype, at, bytes(data))


def header_stamp(data: bytes) -> int:
    """The stamp of a message that begins with a header, without the rest: an image is large."""
    little_endian = data[1] & 1
    seconds, nanoseconds = struct.unpack_from("<iI" if little_endian else ">iI", data, 4)
    return int(seconds) * 10**9 + int(nanoseconds)


@contextmanager
def _opened(path: str | PathLike[str]) -> Iterator[Reader]:
    try:
        with Reader(Path(path)) as reader:
            yield reader
    except FileError:
        raise
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    except _DAMAGED as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise FileError(path, f"is not a whole rosbag2: {reason}: try ros2 bag reindex") from None


# --- writing -------------------------------------------------------------------------------------

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
