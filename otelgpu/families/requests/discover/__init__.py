"""The live side of family ``http``: connections that are open already, and protocol plug-ins."""

from __future__ import annotations

from typing import Final

from otelgpu.families.requests.plugins import are_installed
from otelgpu.kernel.attach import GO, GO_ENTRIES, GO_RETURNS
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.profiling import CALL_KINDS
from otelgpu.model.settings import Settings
from otelgpu.processes.coverage import Inspection
from otelgpu.processes.discovery import Choice, Discovery, Profiles
from otelgpu.processes.probes import ProbePlacer

PLUGIN_BYTES: Final = 16 << 20
"""Where a protocol plug-in is installed: bytes of a connection of none of the built-in protocols which are
shown to it. More would let a bulk transfer that no plug-in reads crowd out what is followed."""


GO_LIBRARIES: Final = frozenset((GO, GO_RETURNS, GO_ENTRIES))
"""What is read of Go programs: a third of what the kernel has to verify of the family."""


def _choose(settings: Settings) -> Choice:
    """Connections of unknown protocols are shown to plug-ins, where there are any that can be loaded."""
    if not are_installed():
        return Choice(later=GO_LIBRARIES)
    from otelgpu.families.requests.protocols import installed  # and with it every protocol there is

    constants = {"http_unknown_bytes": PLUGIN_BYTES} if installed().specs else {}
    return Choice(constants=constants, later=GO_LIBRARIES)


def _watch(loaded: LoadedFamily, placer: ProbePlacer, settings: Settings) -> tuple[object, ...]:
    from otelgpu.families.requests.discover.connections import ConnectionTables
    from otelgpu.families.requests.discover.go_requests import watch_go
    from otelgpu.families.requests.discover.refusals import watch_refusals
    from otelgpu.families.requests.discover.runtimes import RuntimeWatcher
    from otelgpu.families.requests.discover.unread_tls import UnreadTls, reason_by_program

    watch_go(placer)
    return (
        ConnectionTables(loaded),
        RuntimeWatcher(loaded),
        UnreadTls(loaded, reason_by_program),
        *watch_refusals(loaded),
    )


def _examine() -> Inspection:
    from otelgpu.families.requests.discover.coverage import EXAMINATION

    return EXAMINATION


DISCOVERY: Final = Discovery(
    choose=_choose,
    watch={"http": _watch},
    profiles=Profiles(kinds=CALL_KINDS),  # whose requests calls serve
    inspect=_examine,
)
