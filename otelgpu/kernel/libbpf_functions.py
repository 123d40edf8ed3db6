"""The functions of ``libbpf.so.1`` (1.1 and later) that are used, as ``bpf/libbpf.h`` and ``bpf/bpf.h`` have them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Final

PrintFunction: Final = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)
"""``libbpf_print_fn_t``: level, format, and where the arguments of that are."""


class UprobeOptions(ctypes.Structure):
    """struct bpf_uprobe_opts of libbpf 1.1; later versions accept the shorter ``size``."""

    _fields_ = [
        ("size", c_size_t),
        ("ref_ctr_offset", c_size_t),
        ("bpf_cookie", c_uint64),
        ("retprobe", c_bool),
        ("func_name", c_char_p),
    ]


class TracepointOptions(ctypes.Structure):
    """struct bpf_tracepoint_opts of libbpf 1.1."""

    _fields_ = [("size", c_size_t), ("bpf_cookie", c_uint64)]


class KprobeOptions(ctypes.Structure):
    """struct bpf_kprobe_opts of libbpf 1.1."""

    _fields_ = [
        ("size", c_size_t),
        ("bpf_cookie", c_uint64),
        ("offset", c_size_t),
        ("retprobe", c_bool),
    ]


class OpenOptions(ctypes.Structure):
    """struct bpf_object_open_opts of libbpf 1.1."""

    _fields_ = [
        ("size", c_size_t),
        ("object_name", c_char_p),
        ("relaxed_maps", c_bool),
        ("pin_root_path", c_char_p),
        ("unused", c_uint32),
        ("kconfig", c_char_p),
        ("btf_custom_path", c_char_p),
        ("kernel_log_buf", c_void_p),
        ("kernel_log_size", c_size_t),
        ("kernel_log_level", c_uint32),
    ]


Signatures = dict[str, tuple[Any, tuple[Any, ...]]]
"""By name: what it returns, and what it takes."""

FUNCTIONS: Final[Signatures] = {
    "libbpf_set_print": (c_void_p, (PrintFunction,)),
    "libbpf_num_possible_cpus": (c_int, ()),
    "bpf_object__open_mem": (c_void_p, (c_char_p, c_size_t, c_void_p)),
    "btf__parse": (c_void_p, (c_char_p, c_void_p)),
    "btf__free": (None, (c_void_p,)),
    "bpf_object__load": (c_int, (c_void_p,)),
    "bpf_object__close": (None, (c_void_p,)),
    "bpf_map__reuse_fd": (c_int, (c_void_p, c_int)),
    "bpf_program__attach": (c_void_p, (c_void_p,)),
    "bpf_program__attach_tracepoint_opts": (c_void_p, (c_void_p, c_char_p, c_char_p, c_void_p)),
    "bpf_program__attach_kprobe_opts": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "bpf_program__attach_perf_event": (c_void_p, (c_void_p, c_int)),
    "bpf_program__attach_uprobe_opts": (c_void_p, (c_void_p, c_int, c_char_p, c_size_t, c_void_p)),
    "bpf_obj_get_info_by_fd": (c_int, (c_int, c_char_p, POINTER(c_uint32))),
    "bpf_link__destroy": (c_int, (c_void_p,)),
    "bpf_iter_create": (c_int, (c_int,)),
    "bpf_map_lookup_elem": (c_int, (c_int, c_char_p, c_char_p)),
    "bpf_map_update_elem": (c_int, (c_int, c_char_p, c_char_p, c_uint64)),
    "bpf_map_delete_elem": (c_int, (c_int, c_char_p)),
    "bpf_map_get_next_key": (c_int, (c_int, c_char_p, c_char_p)),
    "bpf_map_lookup_batch": (c_int, (c_int, *(c_void_p,) * 6)),
    "bpf_map_update_batch": (c_int, (c_int, c_char_p, c_char_p, c_void_p, c_void_p)),
    "bpf_map_delete_batch": (c_int, (c_int, c_char_p, c_void_p, c_void_p)),
    "bpf_map_create": (c_int, (c_int, c_char_p, c_uint32, c_uint32, c_uint32, c_void_p)),
    "bpf_obj_get": (c_int, (c_char_p,)),
    "bpf_obj_pin": (c_int, (c_int, c_char_p)),
}

QUICK_FUNCTIONS: Final[Signatures] = {
    "libbpf_version_string": (c_char_p, ()),
    "bpf_object__next_map": (c_void_p, (c_void_p, c_void_p)),
    "bpf_object__next_program": (c_void_p, (c_void_p, c_void_p)),
    "bpf_map__name": (c_char_p, (c_void_p,)),
    "bpf_map__fd": (c_int, (c_void_p,)),
    "bpf_map__key_size": (c_uint32, (c_void_p,)),
    "bpf_map__value_size": (c_uint32, (c_void_p,)),
    "bpf_map__max_entries": (c_uint32, (c_void_p,)),
    "bpf_map__set_max_entries": (c_int, (c_void_p, c_uint32)),
    "bpf_map__set_autocreate": (c_int, (c_void_p, c_bool)),
    "bpf_map__initial_value": (c_void_p, (c_void_p, POINTER(c_size_t))),
    "bpf_program__name": (c_char_p, (c_void_p,)),
    "bpf_program__section_name": (c_char_p, (c_void_p,)),
    "bpf_program__autoload": (c_bool, (c_void_p,)),
    "bpf_program__set_autoload": (c_int, (c_void_p, c_bool)),
    "bpf_program__set_type": (c_int, (c_void_p, c_int)),
    "bpf_program__set_expected_attach_type": (c_int, (c_void_p, c_int)),
    "bpf_program__fd": (c_int, (c_void_p,)),
    "bpf_link__fd": (c_int, (c_void_p,)),
}
"""What only reads or sets a field: to let other threads have the interpreter for that is to wait for them."""
