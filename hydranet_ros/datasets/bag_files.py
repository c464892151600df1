"""Read and write bags of rosbag2: folders with a metadata.yaml, or .mcap and .db3 files."""

from __future__ import annotations

import io
import shutil
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import yaml

from hydranet_ros.datasets.bag_messages import STORE, TRANSFORMS, Message
from hydranet_ros.errors import BadInput, FileError, HydraNetError, require
from hydranet_ros.files import read_text
from hydranet_ros.settings import DEEPEST

require("a bag", "rosbags")

import apsw
from lz4.frame import LZ4FrameDecompressor  # type: ignore[import-untyped]
from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import Reader, ReaderError, StoragePlugin, Writer, storage_mcap

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Of a message, and of a chunk of several: one that claims to hold more is not read.
LARGEST_MESSAGE = 64 << 20
LARGEST_METADATA = 4 << 20
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def topics(path: str | PathLike[str]) -> dict[str, str]:
    """The topics of a bag that have messages, with their types."""
    with _opened(path) as reader:
        return {c.topic: c.msgtype for c in reader.connections if c.msgcount}


def read_messages(path: str | PathLike[str], only: set[str] | None = None) -> Iterator[Message]:
    """The messages of a bag, or of some of its topics, in the order of their times."""
    with _opened(path) as reader:
        wanted = [c for c in reader.connections if only is None or c.topic in only]
        packed = reader.compression_mode == "message"
        if packed:  # decompressed here, where there is a limit
            reader.storage.metadata = reader.storage.metadata._replace(compression_mode=None)
        if wanted:
            for connection, at, data in reader.messages(wanted):
                if not isinstance(data, (bytes, memoryview)):
                    raise TypeError(
                        f"a message of {connection.topic} is a text or a number instead of bytes"
                    )
                content = _decompressed(data, LARGEST_MESSAGE) if packed else bytes(data)
                yield Message(connection.topic, connection.msgtype, int(at), content)


def header_stamp(data: bytes) -> int:
    """The stamp of a message that begins with a header, without the rest: an image is large."""
    if len(data) < 12:
        raise BadInput("message", f"a message of {len(data)} bytes has no header: it is damaged")
    little_endian = data[1] & 1
    seconds, nanoseconds = struct.unpack_from("<iI" if little_endian else ">iI", data, 4)
    return int(seconds) * 10**9 + int(nanoseconds)


@contextmanager
def _opened(path: str | PathLike[str]) -> Iterator[Reader]:
    try:
        _check_metadata(Path(path))
        with _bounded_databases(), Reader(_BoundedPath(path)) as reader:
            yield reader
    except HydraNetError:
        raise
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    except Exception as error:  # rosbags and the libraries under it have many for a damaged file
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise FileError(path, f"is not a whole rosbag2: {reason}: try ros2 bag reindex") from error


# --- bounds --------------------------------------------------------------------------------------
# A record, a chunk, a blob or a YAML file may claim, or unpack to, any size.


def _check_metadata(path: Path) -> None:
    """Refuse YAML that is large, deep, or grows by aliases, before it is read as a whole."""
    file = path / "metadata.yaml"
    if not file.is_file():
        return
    depth = 0
    try:
        for event in yaml.parse(read_text(file, LARGEST_METADATA), _LOADER):
            depth += isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent))
            depth -= isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent))
            if depth > DEEPEST or isinstance(event, yaml.AliasEvent):
                raise FileError(file, "is not of a rosbag2: it is nested too deep, or has aliases")
    except yaml.YAMLError as error:
        raise FileError(file, f"is not YAML: {' '.join(str(error).split())}") from None


class _BoundedFile(io.BufferedReader):
    """A file of which no more is read at once than a message may have."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LARGEST_MESSAGE + 1024:
            raise ReaderError(
                f"it has a record of {size} bytes, at most {LARGEST_MESSAGE} are read"
            )
        return super().read(size)


class _BoundedPath(type(Path())):  # type: ignore[misc]  # Path has no class of its own for this
    """A path whose files are bounded where they are read as bytes."""

    def open(self, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if mode == "rb":
            return _BoundedFile(io.FileIO(self))
        return super().open(mode, *arguments, **options)


@contextmanager
def _bounded_databases() -> Iterator[None]:
    """Let SQLite refuse what is too long, in all databases that are opened meanwhile."""

    def bound(connection: apsw.Connection) -> None:
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, LARGEST_MESSAGE)

    apsw.connection_hooks.append(bound)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(bound)


def _decompressed(data: bytes | memoryview, most: int) -> bytes:
    """Unpack zstd, and no more of it than may be there."""
    if (zstd.get_frame_info(data).decompressed_size or 0) > most:
        raise ReaderError(f"compressed data unpack to more than {most} bytes")
    unpacker = zstd.ZstdDecompressor()
    found = bytes(unpacker.decompress(data, most + 1))
    if len(found) > most or not unpacker.eof:
        raise ReaderError(f"compressed data are cut off, or unpack to more than {most} bytes")
    return found


def _lz4_decompressed(data: bytes | memoryview, most: int) -> bytes:
    unpacker = LZ4FrameDecompressor()
    found = bytes(unpacker.decompress(data, most + 1))
    if len(found) > most or not unpacker.eof:
        raise ReaderError(f"compressed data are cut off, or unpack to more than {most} bytes")
    return found


def _within(unpack: Callable[[bytes | memoryview, int], bytes]) -> Callable[[bytes, int], bytes]:
    """Unpack a chunk to the size that it says, where that is one to be read."""

    def bounded(data: bytes, size: int) -> bytes:
        if size > LARGEST_MESSAGE:
            raise ReaderError(
                f"it has a chunk of {size} bytes, at most {LARGEST_MESSAGE} are read"
            )
        return unpack(data, size)

    return bounded


# rosbags unpacks a chunk whatever it grows to.
storage_mcap.DECOMPRESSORS.update(zstd=_within(_decompressed), lz4=_within(_lz4_decompressed))


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
    except (OSError, apsw.Error, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(target, f"cannot be written: {reason}") from None
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
