"""pprof's messages. Pure.

Source: https://github.com/google/pprof/blob/main/proto/profile.proto. ``string_table`` is read as bytes: what some tool
wrote need not be UTF-8.
"""

from __future__ import annotations

from typing import Any, Final

from otelgpu.protobuf.messages import message_types

_TYPES: Final = message_types(
    "pprof",
    {
        "Profile": (
            "repeated ValueType sample_type = 1",
            "repeated Sample sample = 2",
            "repeated Mapping mapping = 3",
            "repeated Location location = 4",
            "repeated Function function = 5",
            "repeated bytes string_table = 6",
            "int64 time_nanos = 9",
            "int64 duration_nanos = 10",
            "ValueType period_type = 11",
            "int64 period = 12",
            "int64 default_sample_type = 14",
        ),
        "ValueType": ("int64 type = 1", "int64 unit = 2"),
        "Sample": ("repeated uint64 location_id = 1", "repeated int64 value = 2", "repeated Label label = 3"),
        "Label": ("int64 key = 1", "int64 str = 2", "int64 num = 3"),
        "Mapping": (
            "uint64 id = 1",
            "uint64 memory_start = 2",
            "uint64 memory_limit = 3",
            "uint64 file_offset = 4",
            "int64 filename = 5",
            "int64 build_id = 6",
            "bool has_functions = 7",
            "bool has_filenames = 8",
            "bool has_line_numbers = 9",
            "bool has_inline_frames = 10",
        ),
        "Location": (
            "uint64 id = 1",
            "uint64 mapping_id = 2",
            "uint64 address = 3",
            "repeated Line line = 4",
        ),
        "Line": ("uint64 function_id = 1", "int64 line = 2"),
        "Function": ("uint64 id = 1", "int64 name = 2", "int64 system_name = 3", "int64 filename = 4"),
    },
)
Profile: Final[Any] = _TYPES["Profile"]
