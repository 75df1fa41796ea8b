"""Arrays in the safetensors format, where they lie: the library would copy them, or open a file that nobody checked."""

import json
import math
import mmap
from collections.abc import Iterator, Mapping

import numpy as np

_TYPES: Mapping[str, type] = {
    "F16": np.float16,
    "F32": np.float32,
    "I8": np.int8,
    "I64": np.int64,
    "U16": np.uint16,
    "U32": np.uint32,
}
_HEAD = 8
#: Bytes of a mapped file that are in memory at a time while all of it is looked at.
_PART = 1 << 18


def view_arrays(content: bytes | memoryview) -> dict[str, np.ndarray]:
    """Return the arrays by name; they share the content's memory. ValueError for what is no such content."""
    body = _HEAD + int.from_bytes(content[:_HEAD], "little")
    if not _HEAD < body <= len(content):
        raise ValueError("the head of its arrays is cut off")
    head = json.loads(bytes(content[_HEAD:body]))
    head.pop("__metadata__", None)
    return {name: _view(content[body:], name, **about) for name, about in head.items()}


def _view(
    data: bytes | memoryview, name: str, dtype: str, shape: list[int], data_offsets: tuple[int, int]
) -> np.ndarray:
    begin, end = data_offsets
    size = math.prod(shape) * np.dtype(_TYPES[dtype]).itemsize
    if not (0 <= begin <= end <= len(data) and end - begin == size and all(side >= 0 for side in shape)):
        raise ValueError(f"array {name!a} does not lie inside its file")
    return np.frombuffer(data[begin:end], _TYPES[dtype]).reshape(shape)


def look_through(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield an array part by part; of one that is mapped from a file, memory holds one part at a time."""
    size = max(1, _PART // array.itemsize)
    for begin in range(0, len(array), size):
        yield array[begin : begin + size]
        _forget(array)


def _forget(array: np.ndarray) -> None:
    """Let go of the pages of a mapped file: whoever needs them again gets them from the file."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview) and isinstance(owner.obj, mmap.mmap):
        owner.obj.madvise(mmap.MADV_DONTNEED)
