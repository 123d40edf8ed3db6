"""Which addresses are a provider's functions, and which are refused."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from otelgpu.families.rdma.discover.contexts import (
    NoProvider,
    _contexts_in,
    find_contexts,
    locate,
    open_provider,
)
from otelgpu.processes.elf_files import open_elf
from otelgpu.processes.maps import Mapping, parse_maps

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
PROVIDERS = LIBRARIES / "libibverbs"
MAPS = b"""\
10000-20000 r-xp 00001000 08:01 11 /lib/libfoo-rdmav34.so
20000-21000 rw-p 00011000 08:01 11 /lib/libfoo-rdmav34.so
30000-40000 r-xp 00000000 08:01 12 /lib/libibverbs.so.1.14.44.0
50000-60000 r-xp 00000000 08:01 13 /opt/program
60000-70000 rwxp 00000000 08:01 14 /opt/patched.so
70000-80000 r-xp 00000000 00:00 0 [vdso]
80000-90000 rwxp 00000000 00:00 0
"""
OFFSETS = {
    "CONTEXT_DEVICE": 0,
    "CONTEXT_POLL_CQ": 96,
    "CONTEXT_POST_SRQ_RECV": 168,
    "CONTEXT_POST_SEND": 208,
    "CONTEXT_POST_RECV": 216,
    "CONTEXT_ABI_COMPAT": 320,
    "CONTEXT_CREATE_QP_EX": -56,
    "CONTEXT_CREATE_CQ_EX": -120,
}


def mappings() -> list[Mapping]:
    return parse_maps(MAPS)


def test_functions_become_offsets_of_their_file() -> None:
    found = locate({"post_send": 0x10010, "poll_cq": 0x1FFFF, "post_srq_recv": 0}, mappings())
    assert [(each.symbol, each.offset, each.mapping.inode) for each in found] == [
        ("post_send", 0x1010, 11),
        ("poll_cq", 0x10FFF, 11),
    ]


def test_what_libibverbs_has_for_a_provider_that_lacks_it_is_left_out() -> None:
    found = locate({"post_send": 0x10010, "post_srq_recv": 0x30010}, mappings())
    assert [each.symbol for each in found] == ["post_send"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (0x20010, "provider_address_implausible"),  # data
        (0x45000, "provider_address_implausible"),  # nothing
        (0x70010, "provider_address_implausible"),  # no file
        (0x80010, "provider_address_implausible"),  # made at run time
        (0x60010, "provider_code_writable"),
        (0x50010, "provider_in_several_files"),
        (0xFFFF_FFFF_FFFF_FFFF, "provider_address_implausible"),
    ],
)
def test_anything_else_is_refused(address: int, reason: str) -> None:
    with pytest.raises(NoProvider, match=reason):
        locate({"post_send": 0x10010, "poll_cq": address}, mappings())


def context(**functions: int) -> bytes:
    """struct verbs_context from 128 bytes before the context on."""
    memory = bytearray(128 + 512)
    struct.pack_into("<Q", memory, 128 + 320, 0xFFFF_FFFF_FFFF_FFFF)
    for name, address in functions.items():
        struct.pack_into("<Q", memory, 128 + OFFSETS[f"CONTEXT_{name.upper()}"], address)
    return bytes(memory)


CODE = np.array([(0x10000, 0x20000), (0x50000, 0x60000)], np.uint64)


def test_a_context_is_found_in_memory_by_its_mark_and_functions() -> None:
    whole = context(post_send=0x10010, post_recv=0x10020, poll_cq=0x50030, create_qp_ex=0x10040)
    memory = b"\xff" * 1024 + bytes(8 * 37) + whole + b"\xff" * 512
    assert list(_contexts_in(memory, OFFSETS, CODE)) == [
        {
            "post_send": 0x10010,
            "post_recv": 0x10020,
            "poll_cq": 0x50030,
            "post_srq_recv": 0,
            "create_qp_ex": 0x10040,
            "create_cq_ex": 0,
        }
    ]


@pytest.mark.parametrize("lacking", ["post_send", "post_recv", "poll_cq"])
def test_a_mark_without_functions_in_code_is_no_context(lacking: str) -> None:
    functions = {"post_send": 0x10010, "post_recv": 0x10020, "poll_cq": 0x10030}
    memory = context(**functions | {lacking: 0x20000})
    assert list(_contexts_in(memory, OFFSETS, CODE)) == []
    assert list(_contexts_in(memory, OFFSETS, CODE[:0])) == []
    assert list(_contexts_in(b"\xff" * 100, OFFSETS, CODE)) == []


def test_a_process_that_is_gone_has_no_contexts() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert list(find_contexts(child.pid, OFFSETS)) == []


def test_a_file_that_registers_no_driver_is_no_provider() -> None:
    own = next(each for each in parse_maps(Path("/proc/self/maps").read_bytes()) if "libc.so" in each.path)
    with pytest.raises(NoProvider):
        open_provider(os.getpid(), own)


# -- the real libraries, where they are installed ----------------------------------------------------------


def installed(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path} is not there (Debian: libibverbs1, librdmacm1, ibverbs-providers)")
    return path


@pytest.mark.parametrize("provider", ["libmlx5", "librxe", "libefa", "libbnxt_re", "libirdma", "libsiw"])
def test_real_providers_are_known_as_such(provider: str) -> None:
    path = installed(PROVIDERS / f"{provider}-rdmav34.so").resolve()
    status = path.stat()
    mapping = Mapping(
        start=0x1000, end=0x2000, permissions="r-xp", offset=0, device=(0, 0), inode=status.st_ino,
        path=str(path), deleted=False,
    )  # fmt: skip
    os.close(open_provider(os.getpid(), mapping))


def test_of_two_versions_of_a_name_the_default_one_is_probed() -> None:
    path = installed(LIBRARIES / "libibverbs.so.1")
    names = ("ibv_create_qp", "ibv_reg_mr", "ibv_modify_qp", "ibv_open_device", "ibv_get_cq_event")
    said = subprocess.run(["readelf", "--dyn-syms", "-W", path], capture_output=True, text=True, check=True)
    wanted = {}
    for line in said.stdout.splitlines():
        words = line.split()
        if len(words) >= 8 and words[7].partition("@@")[0] in names and "@@" in words[7]:
            wanted[words[7].partition("@@")[0]] = int(words[1], 16)
    assert set(wanted) == set(names)
    with open_elf(path) as file:
        assert file.image.function_offsets(names) == wanted  # its code lies at its address


def test_every_function_that_is_probed_exists_in_the_real_libraries() -> None:
    from otelgpu.kernel.attach import places
    from otelgpu.kernel.loader import read_image

    [listed] = [name for name in read_image("verbs").sections if name.startswith("uprobe/libibverbs:")]
    files = {
        "libibverbs": LIBRARIES / "libibverbs.so.1",
        "libmlx5": LIBRARIES / "libmlx5.so.1",
        "librdmacm": LIBRARIES / "librdmacm.so.1",
    }
    for library_name, path in files.items():
        symbols = {symbol for of, symbol in places(listed) if of == library_name}
        with open_elf(installed(path)) as file:
            assert set(file.image.function_offsets(symbols)) == symbols, library_name
