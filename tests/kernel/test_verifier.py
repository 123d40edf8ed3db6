"""Programs pass the verifier with room to spare: it gives up at a million instructions."""

from __future__ import annotations

from typing import Final

import pytest

from otelgpu.engine.registry import with_records
from otelgpu.kernel.loader import load_family, read_image
from otelgpu.kernel.uprobe_links import UprobeLinks, uprobe_links
from tests.kernel.program_info import verified_instructions

MOST: Final = 100_000
"""A tenth of what the kernel allows (BPF_COMPLEXITY_LIMIT_INSNS)."""


@pytest.mark.parametrize("sessions", [True, False], ids=["sessions", "pairs"])
@pytest.mark.parametrize("family", ["process", *with_records()])
def test_no_program_takes_more_than_a_tenth_of_what_the_verifier_allows(family: str, sessions: bool) -> None:
    if sessions and uprobe_links() < UprobeLinks.SESSION:
        pytest.skip("this kernel has no uprobe sessions")
    # All that a user can ask for is there.
    loaded = load_family(
        read_image(family), constants={"stack_kinds": 0xFFFFFFFF}, ring_bytes=4096, sessions=sessions
    )
    try:
        counts = {program.name: verified_instructions(program) for program in loaded.programs}
    finally:
        loaded.close()
    if not any(counts.values()):
        pytest.skip("this kernel does not say how many instructions it has verified (Linux 5.16)")
    assert {name: count for name, count in counts.items() if not 0 < count <= MOST} == {}
