"""What ``otelgpu check`` says of RDMA: the providers of the devices that a process has open.

Of the process' memory that is read which has a context of libibverbs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from otelgpu.elf.btf import Btf
from otelgpu.families.rdma.discover import contexts as verbs_contexts
from otelgpu.families.rdma.discover.providers import REASONS
from otelgpu.processes.coverage import Blind, Findings, Inspection, Machine, Observed, is_seen
from otelgpu.processes.maps import executable_mappings

VERBS: Final = "libibverbs"
"""Library name of the RDMA verbs."""

_PROVIDER: Final = "use a provider of rdma-core or of the vendor's packages; ports are counted all the same"


class OpenDevice(Struct, frozen=True, kw_only=True):
    """RDMA devices that a process has open, of one provider. ``refusal``: why their functions get no probes, or ""."""

    provider: str = ""
    refusal: str = ""


def examine_process(process: Observed, btf: Btf) -> Sequence[OpenDevice]:
    """Providers of the RDMA devices that it has open, and why some are refused."""
    if not any(library.name == VERBS for library in process.libraries):
        return ()
    mappings = executable_mappings(process.pid)
    found: dict[OpenDevice, None] = {}
    for functions in verbs_contexts.find_contexts(process.pid, btf.enumerators("verbs_context_offset")):
        try:
            located = verbs_contexts.locate(functions, mappings)
            if located:
                os.close(verbs_contexts.open_provider(process.pid, located[0].mapping))
                found[OpenDevice(provider=located[0].mapping.path)] = None
        except verbs_contexts.NoProvider as reason:
            found[OpenDevice(refusal=REASONS[str(reason)])] = None
    return tuple(found)


def judge(process: Observed, machine: Machine) -> Findings:
    """Posts and polls, which are functions of a device's provider and no library's exports."""
    if not any(library.name == VERBS and is_seen(library) for library in process.libraries):
        return Findings()
    devices = [shown.fact for shown in process.shown.get("verbs", ()) if isinstance(shown.fact, OpenDevice)]
    if not devices:
        return Findings(["RDMA posts and polls of devices that it opens: none was found open"])
    blind = [
        Blind(what="RDMA posts and polls", why=device.refusal, do=_PROVIDER)
        for device in devices
        if device.refusal
    ]
    return Findings([f"RDMA posts and polls by {each.provider}" for each in devices if each.provider], blind)


EXAMINATION: Final = Inspection(judge=judge, process=examine_process)
