"""The header of a safetensors file in one order, so that the same network is the same file to the last byte."""

from __future__ import annotations

import json

SIZE, ALIGNED = 8, 8  # bytes of the header's length at the start; what its end is a multiple of


def in_order(file: bytes) -> bytes:
    """The file with its metadata sorted by name: safetensors writes them in an order of its own, every time another.

    A file is the length of the header as a little-endian integer, the header as JSON with spaces behind it, and data.

    >>> header = b'{"__metadata__":{"b":"2","a":"1"}}'
    >>> in_order(len(header).to_bytes(8, "little") + header + b"data")[8:]
    b'{"__metadata__":{"a":"1","b":"2"}}      data'
    """
    end = SIZE + int.from_bytes(file[:SIZE], "little")
    header = json.loads(file[SIZE:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    return b"".join((len(text).to_bytes(SIZE, "little"), text, memoryview(file)[end:]))
