"""Programs on uprobes may be preempted, so none keeps its variables on a stack that is its CPU's: bpf/lib/own_stack.h.

Kernels from 6.13 on give such a stack, and say so in the code that they made.
"""

from __future__ import annotations

from typing import Final

import pytest

from otelgpu.engine.registry import with_records
from otelgpu.kernel.attach import functions_of
from otelgpu.kernel.loader import load_family, read_image
from otelgpu.kernel.uprobe_links import ATTACH_TYPES, UprobeLinks, uprobe_links
from tests.kernel.program_info import machine_code

# add r9, gs:[...]: the last instruction of emit_priv_frame_ptr(), arch/x86/net/bpf_jit_comp.c of Linux 6.13. No
# register of BPF is r9.
PRIVATE_STACK: Final = bytes.fromhex("654c030c25")


@pytest.mark.parametrize("sessions", [True, False], ids=["sessions", "pairs"])
@pytest.mark.parametrize("family", [name for name in with_records() if functions_of(read_image(name))])
def test_no_program_on_a_uprobe_has_the_stack_of_its_cpu(family: str, sessions: bool) -> None:
    if sessions and uprobe_links() < UprobeLinks.SESSION:
        pytest.skip("this kernel has no uprobe sessions")
    loaded = load_family(read_image(family), constants={}, ring_bytes=4096, sessions=sessions)
    try:
        code = {each.name: machine_code(each) for each in loaded.programs if each.probes in ATTACH_TYPES}
        assert code and all(code.values()), "the kernel shows its code to root"
        assert [name for name, made in code.items() if PRIVATE_STACK in made] == []
    finally:
        loaded.close()
