"""Damaged JPEGs that can be decoded all the same.

A JPEG has no checksum. After a wrong bit a decoder soon reads right codes again, but may have
counted a block too many or too few: the rest of the image is there, moved to the side, and a
flow tells of a turn that never was. No decoder at hand says so. Here a row of blocks with a known
pattern is put behind the data, and the height raised by it. Only where the data hold as many
blocks as the image has, does the pattern come out at its place.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

Bits = tuple[int, int]  # a number, and how many bits it has

# The pattern is brighter, then darker than the rest of its row by about this many grey levels.
STEP, LEAST_STEP = 48, 8
# Other than these are no part of the pixels but in a damaged file.
_MARKER = re.compile(rb"\xff[^\x00]")
# An encoder of which so many images in a row fail is not understood: its images are believed.
NOT_UNDERSTOOD = 10
_SOF, _DHT, _SOS, _DQT, _DRI, _EOI = (0xC0, 0xC1), 0xC4, 0xDA, 0xDB, 0xDD, b"\xff\xd9"
_FLAGS = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION


class JpegCheck:
    """Tells damaged from whole JPEGs of one stream."""

    def __init__(self) -> None:
        self._failed = 0

    def is_damaged(self, data: bytes) -> bool:
        """Whether the pixels are not all there, or not at their places."""
        outcome = is_whole(data)
        if outcome is None:
            return False
        self._failed = 0 if outcome else self._failed + 1
        return not outcome and self._failed <= NOT_UNDERSTOOD


def is_whole(data: bytes) -> bool | None:
    """Whether a JPEG has as many blocks as it should; None where that cannot be told.

    It can for sequential JPEGs without restart markers, as cameras and ROS make them.
    """
    try:
        layout = _Layout.read(data)
        pattern = list(layout.pattern())
    except (struct.error, IndexError, KeyError, ValueError):
        return None
    end = data.rfind(_EOI)
    while end > layout.start and data[end - 1] == 0xFF:  # padding
        end -= 1
    pixels = data[layout.start : end]
    if _MARKER.search(pixels):
        return False
    header = bytearray(data[: layout.start])
    struct.pack_into(">H", header, layout.height_at, layout.height + layout.mcu[0])
    head, tail = _split(pixels)
    for ended in _ends(tail, layout.end_of_block):
        longer = bytes(header) + head + _packed([ended, *pattern]) + _EOI
        image = cv2.imdecode(np.frombuffer(longer, np.uint8), _FLAGS)
        if image is not None and layout.shows_pattern(image):
            return True
    return False


class _Component(NamedTuple):
    """Its blocks in a unit of the scan, and its codes for differences and for the rest."""

    blocks: int
    dc: dict[int, Bits]
    ac: dict[int, Bits]


@dataclass
class _Layout:
    """What the header says of the pixels, which begin at `start`."""

    height: int = 0  # whole units
    width: int = 0
    height_at: int = 0
    start: int = 0
    mcu: tuple[int, int] = (8, 8)
    first_quantum: int = 0
    components: list[_Component] = field(default_factory=list)

    @classmethod
    def read(cls, data: bytes) -> _Layout:
        """Walk the segments; an error where there is something that is not known here."""
        out, tables, quanta = cls(), dict[int, dict[int, Bits]](), dict[int, int]()
        shape: dict[int, tuple[int, int, int]] = {}
        for marker, at, length in _segments(data):
            body = data[at : at + length]
            if marker == _DHT:
                tables |= dict(_huffman(body))
            elif marker == _DQT:
                quanta |= dict(_quantisation(body))
            elif marker in _SOF:
                precision, out.height, out.width, count = struct.unpack_from(">BHHB", body)
                if precision != 8 or count not in (1, 3):
                    raise ValueError("not 8 bits, grey or in colours")
                out.height_at = at + 1
                for one, sampling, quantum in struct.iter_unpack("BBB", body[6 : 6 + 3 * count]):
                    shape[one] = sampling >> 4, sampling & 15, quantum
            elif 0xC0 <= marker <= 0xCF or (marker == _DRI and any(body[:2])):
                raise ValueError("not sequential, or with restarts")
            elif marker == _SOS:
                out.start = at + length
                out._take(body, shape, tables, quanta)
                return out
        raise ValueError("without pixels")

    def _take(
        self,
        scan: bytes,
        shape: dict[int, tuple[int, int, int]],
        tables: dict[int, dict[int, Bits]],
        quanta: dict[int, int],
    ) -> None:
        """The components in the order of the scan."""
        if scan[0] != len(shape):
            raise ValueError("more than one scan")
        single = len(shape) == 1
        for one, used in struct.iter_unpack("BB", scan[1 : 1 + 2 * scan[0]]):
            across, down, quantum = shape[one]
            blocks = 1 if single else across * down
            self.components.append(_Component(blocks, tables[used >> 4], tables[16 + (used & 15)]))
            self.first_quantum = self.first_quantum or quanta[quantum]
        if not single:
            self.mcu = (
                8 * max(down for _, down, _ in shape.values()),
                8 * max(across for across, _, _ in shape.values()),
            )
        self.height = ceil(self.height / self.mcu[0]) * self.mcu[0]
        if self.width < 4 * self.mcu[1] or self.height + self.mcu[0] >= 1 << 16:
            raise ValueError("no room for the pattern")

    @property
    def end_of_block(self) -> Bits:
        """With which the pixels end, unless the last block is full."""
        return self.components[-1].ac[0]

    @property
    def step(self) -> int:
        """Of the pattern, in quantised units that there are codes for."""
        known = self.components[0].dc
        wanted = max(round(8 * STEP / self.first_quantum), 1)
        steps = [s for s in range(wanted, 4 * wanted) if {_size(s), _size(2 * s)} <= known.keys()]
        if not steps:
            raise ValueError("no codes for the pattern")
        return steps[0]

    def pattern(self) -> Iterator[Bits]:
        """The bits of a row: brighter, darker, then as the last block was."""
        steps = [self.step, -2 * self.step, self.step]
        for unit in range(ceil(self.width / self.mcu[1])):
            for number, component in enumerate(self.components):
                for block in range(component.blocks):
                    first = number == block == 0 and unit < len(steps)
                    yield from _difference(steps[unit] if first else 0, component.dc)
                    yield component.ac[0]

    def shows_pattern(self, image: NDArray[Any]) -> bool:
        """Whether the last row of blocks is the pattern and nothing else."""
        row, width = image[self.height :], self.mcu[1]
        bright, dark, rest = row[:, :width], row[:, width : 2 * width], row[:, 2 * width :]
        if any(part.min() != part.max() for part in (bright, dark, rest)):
            return False
        levels = [int(part[0, 0]) for part in (bright, rest, dark)]
        ordered = levels == sorted(levels, reverse=True)
        return ordered and levels[0] - levels[2] >= LEAST_STEP


# --- segments ------------------------------------------------------------------------------------


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, place and length of each segment's content."""
    at = 2
    while True:
        while data[at + 1] == 0xFF:
            at += 1
        marker = data[at + 1]
        if data[at] != 0xFF:
            raise ValueError("no marker")
        (length,) = struct.unpack_from(">H", data, at + 2)
        yield marker, at + 4, length - 2
        at += 2 + length


def _huffman(body: bytes) -> Iterator[tuple[int, dict[int, Bits]]]:
    """Tables by class and name: symbol -> code. Codes of a length count up, in order."""
    at = 0
    while at < len(body):
        counts, symbols = body[at + 1 : at + 17], at + 17
        code, codes = 0, dict[int, Bits]()
        for length, count in enumerate(counts, 1):
            for symbol in body[symbols : symbols + count]:
                codes[symbol] = code, length
                code += 1
            symbols += count
            code *= 2
        yield body[at], codes
        at = symbols


def _quantisation(body: bytes) -> Iterator[tuple[int, int]]:
    """The first number of each table: that of the mean."""
    at = 0
    while at < len(body):
        wide = body[at] >> 4
        yield body[at] & 15, int.from_bytes(body[at + 1 : at + 2 + wide], "big")
        at += 1 + 64 * (1 + wide)


# --- bits ----------------------------------------------------------------------------------------


def _size(number: int) -> int:
    return abs(number).bit_length()


def _difference(number: int, codes: dict[int, Bits]) -> Iterator[Bits]:
    """A difference of means: its size as a code, then its bits; negative ones less one."""
    size = _size(number)
    yield codes[size]
    if size:
        yield number if number > 0 else number + (1 << size) - 1, size


def _split(pixels: bytes) -> tuple[bytes, Bits]:
    """All but the last bytes as they are, and those as bits without what is stuffed in."""
    cut = max(len(pixels) - 4, 0)
    while cut > 0 and pixels[cut - 1] == 0xFF:
        cut -= 1
    tail = pixels[cut:].replace(b"\xff\x00", b"\xff")
    return pixels[:cut], (int.from_bytes(tail, "big"), 8 * len(tail))


def _ends(tail: Bits, end_of_block: Bits) -> list[Bits]:
    """The tail without its padding of ones, or of zeros, as likely ends first."""
    number, length = tail
    found = []
    for unused in range(min(8, length)):
        padding = number & ((1 << unused) - 1)
        if padding in (0, (1 << unused) - 1):
            found.append((number >> unused, length - unused))
    code, size = end_of_block
    return sorted(found, key=lambda bits: bits[0] & ((1 << size) - 1) != code)


def _packed(parts: list[Bits]) -> bytes:
    """Bits as bytes, padded with ones, with the zeros that keep them from being markers."""
    text = "".join(format(number, f"0{length}b") for number, length in parts if length)
    text += "1" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\x00")
