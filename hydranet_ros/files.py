"""Files of strangers in, each within bounds; files out that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from hydranet_ros.errors import FileError

# Beside the file that is written, until it takes its place.
_UNFINISHED = ".{name}.{process}"
_unfinished: set[Path] = set()

LARGEST_TEXT = 256 << 20
LONGEST_LINE = 1 << 16
LARGEST_IMAGE_FILE = 128 << 20
LARGEST_IMAGE = 1 << 25  # pixels: a decoder takes up to six bytes for each


# --- out -----------------------------------------------------------------------------------------


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file beside `path` to write to; it takes the place of `path` when all went well."""
    path = Path(path)
    temporary = path.with_name(_UNFINISHED.format(name=path.name, process=os.getpid()))
    _unfinished.add(temporary)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise FileError(path, f"cannot be written: {_reason(error)}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        _unfinished.discard(temporary)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder in the folder `path`; when all went well, what is in it moves there."""
    temporary = path / _UNFINISHED.format(name="results", process=os.getpid())
    _unfinished.add(temporary)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in sorted(temporary.rglob("*")):
            place = path / file.relative_to(temporary)
            if file.is_dir():
                place.mkdir(exist_ok=True)
            else:
                os.replace(file, place)
    except OSError as error:
        raise FileError(path, f"cannot be written: {_reason(error)}") from None
    except FileError as error:
        if temporary in Path(error.path).parents:  # said of where it would be
            name = path / Path(error.path).relative_to(temporary)
            raise FileError(name, error.reason) from None
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _unfinished.discard(temporary)


def remove_unfinished() -> None:
    """Remove what this process was writing: for one that ends without cleaning up."""
    for path in list(_unfinished):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink(missing_ok=True)


def remove_left_behind(folder: Path) -> None:
    """Remove what processes that were killed were writing into a folder."""
    for path in folder.glob(_UNFINISHED.format(name="*", process="*")):
        process = path.suffix[1:]
        if process.isdecimal() and not _runs(int(process)):
            path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OverflowError, PermissionError):
        return True
    return True


# --- text in -------------------------------------------------------------------------------------


def read_text(path: str | PathLike[str], largest: int = LARGEST_TEXT) -> str:
    """Read a text file, or raise a FileError that says why not; a byte order mark is left out."""
    try:
        return read_bytes(path, largest).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileError(path, "is not a text file") from None


def read_lines(path: str | PathLike[str]) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, from 1 on, as an editor counts them."""
    _check_size(path, LARGEST_TEXT)
    number = 0
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise FileError(path, f"is longer than {LONGEST_LINE} characters", number)
                yield number, line.rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None


def read_bytes(path: str | PathLike[str], largest: int) -> bytes:
    """Read a file that is not larger than it may be."""
    _check_size(path, largest)
    try:
        with Path(path).open("rb") as file:
            return file.read(largest)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def _check_size(path: str | PathLike[str], largest: int) -> None:
    try:
        size = os.stat(path).st_size
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if size > largest:
        raise FileError(path, f"has {size >> 20} MB, at most {max(largest >> 20, 1)} are read")


def unreadable(path: str | PathLike[str], error: OSError | ValueError) -> FileError:
    """Why a file cannot be read, in a line."""
    if isinstance(error, UnicodeDecodeError):
        return FileError(path, "is not a text file")
    return FileError(path, f"cannot be read: {_reason(error)}")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        if error.errno == errno.ENAMETOOLONG:
            return "its name is too long"
        return error.strerror or str(error)
    return str(error)


# --- images in -----------------------------------------------------------------------------------
# A decoder believes the size in a header: 300 bytes may ask for gigabytes. It is read here before.


def image_size(data: bytes | memoryview) -> tuple[int, int]:
    """(width, height) from the header of a whole JPEG or PNG, or a ValueError.

    It is not whole without its end, and refused beyond LARGEST_IMAGE pixels.
    """
    data = bytes(data)
    try:
        width, height = _png_size(data) if data[:4] == b"\x89PNG" else _jpeg_size(data)
    except (struct.error, IndexError):
        raise ValueError("is cut off: copy it again") from None
    if min(width, height) < 1:
        raise ValueError(f"has {width}x{height} pixels: it is empty")
    if width * height > LARGEST_IMAGE:
        raise ValueError(
            f"has {width}x{height} pixels, more than {LARGEST_IMAGE >> 20} million: scale it down"
        )
    return width, height


def _png_size(data: bytes) -> tuple[int, int]:
    """Walk the chunks to the end; each has a checksum."""
    at, size = 8, None
    while True:
        (length,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8]
        (checksum,) = struct.unpack_from(">I", data, at + 8 + length)
        if crc32(memoryview(data)[at + 4 : at + 8 + length]) != checksum:
            raise ValueError("is a damaged PNG: copy it again")
        if size is None:
            if kind != b"IHDR":
                raise ValueError("is a damaged PNG: copy it again")
            size = struct.unpack_from(">II", data, at + 8)
        if kind == b"IEND":
            return size
        at += 12 + length


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Walk the segments to the frame header, and on to the first scan."""
    if data[:2] != b"\xff\xd8":
        raise ValueError("cannot be read as an image: PNG and JPEG can")
    at, size = 2, None
    while True:
        while data[at] == 0xFF and data[at + 1] == 0xFF:  # padding
            at += 1
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0x00, 0xD8, 0xD9):
            raise ValueError("is a damaged JPEG: copy it again")
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:  # without content
            at += 2
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            if size is not None and size != (width, height):
                raise ValueError("is a damaged JPEG, with two sizes: copy it again")
            size = int(width), int(height)
        at += 2 + length
        if marker == 0xDA:  # the pixels, in which 0xFF 0xD9 is nothing but the end
            if size is None:
                raise ValueError("is a damaged JPEG: copy it again")
            if data.rfind(b"\xff\xd9") < at:
                raise ValueError("is cut off: copy it again")
            return size
