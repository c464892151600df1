"""Read bags of rosbag2: folders with a metadata.yaml, or single .mcap and .db3 files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import apsw
from rosbags.rosbag2 import Reader, ReaderError

from hydranet_ros.bags.messages import Message
from hydranet_ros.errors import FileError

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
