"""Records of ``struct http_data_*`` become one Python tuple each, at a constant cost per record.

In: a structured array. Out: plain tuples. Offsets come from the dtype, which is made from BTF. Numpy is not used for
the fields: an access costs about a microsecond per batch and field, and mixed traffic comes in batches of one or two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from otelgpu.model.inputs import Records

ChunkRow = tuple[int, int, int, int, int, bytes, bytes, int, int, int, int, int, int, int, int, int, bytes]

_HEAD_FIELDS = (
    *("time_ns", "duration_ns", "tgid", "tid", "cgroup_id"),
    *("trace_id", "span_id", "trace_flags", "context_source"),
)
_CHUNK_FIELDS = ("connection", "arrival_ns", "stream_offset", "result", "sequence", "captured", "direction")
_CODES = {"u8": "Q", "i8": "q", "u4": "I", "i4": "i", "u2": "H", "i2": "h", "u1": "B", "i1": "b"}


class ChunkLayout:
    """How to unpack one record class. Raises KeyError when the dtype lacks a field that is needed."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        located = [_field_at(dtype, ("chunk", "head", name)) for name in _HEAD_FIELDS]
        located += [_field_at(dtype, ("chunk", name)) for name in _CHUNK_FIELDS]
        located.append(_field_at(dtype, ("data",)))
        fields = [(offset, _CODES.get(field.str[1:], f"{field.itemsize}s")) for offset, field in located]
        form = "<"
        position = 0
        for offset, code in sorted(fields):
            form += f"{offset - position}x{code}"
            position = offset + struct.calcsize("<" + code)
        self._rows = struct.Struct(f"{form}{dtype.itemsize - position}x")
        if sorted(fields) != fields:
            raise KeyError("fields of http_data in another order than known")

    def rows(self, records: Records) -> Iterator[ChunkRow]:
        """Yield (``_HEAD_FIELDS``…, ``_CHUNK_FIELDS``…, data) of each record."""
        return self._rows.iter_unpack(records.tobytes())


def _field_at(dtype: np.dtype[np.void], path: tuple[str, ...]) -> tuple[int, np.dtype[np.void]]:
    start = 0
    for name in path:
        assert dtype.fields is not None
        dtype, offset = dtype.fields[name][:2]
        start += offset
    return start, dtype
