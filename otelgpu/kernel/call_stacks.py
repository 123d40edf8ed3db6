"""Where the programs that see a library's call begin find the one that takes its stack: see bpf/lib/call_stacks.h."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from otelgpu.kernel.libbpf import Object, Program

PLACES: Final[Mapping[str, str]] = {
    "call_stack_at_entry": "call_stack_programs",
    "call_stack_in_session": "call_stack_sessions",
}
"""Program of family profile → the map of family process that it is offered in: one for each way of attaching."""

_FIRST: Final = struct.pack("<I", 0)


def offer_call_stacks(process: Object, loaded: Iterable[Program]) -> None:
    """Of programs that were loaded, put those that take stacks where all families look. Raises :class:`BpfError`."""
    for program in loaded:
        if program.name in PLACES:
            process.maps[PLACES[program.name]].put(_FIRST, struct.pack("<I", program.fd))
