"""Arrays in the safetensors format, where they lie: the library would copy them, or open a file that nobody checked."""

import json
import math
from collections.abc import Mapping

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
