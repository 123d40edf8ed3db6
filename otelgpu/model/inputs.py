"""Everything that can enter the pipeline: batches of records, and facts from outside the rings.

Live operation and replay feed the same sequence of these, so they give the same spans. A capture is
this sequence on disk.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.model.devices import DeviceInput
from otelgpu.model.fabric import FabricInput
from otelgpu.model.pressure import ProcessPressed
from otelgpu.model.resource import Resource
from otelgpu.model.samples import StackNamed
from otelgpu.model.switches import SwitchesRead

Records = npt.NDArray[np.void]


class Batch(Struct, frozen=True, kw_only=True):
    """Records of one kind of one family, in ring order.

    ``records`` has the dtype that the BPF object's BTF gives for the C struct named ``kind``
    (``cuda_launch``, ``http_data_256``, …); its ``head`` field is ``struct record_head``.
    """

    family: str
    kind: str
    records: Records

    @property
    def heads(self) -> Records:
        """The records' ``struct record_head``, which is their first member or that of their first member."""
        column: Records = self.records
        while "head" not in (column.dtype.names or ()):
            column = column[(column.dtype.names or ())[0]]
        return column["head"]


def joined_batches(batches: Sequence[Batch]) -> Batch:
    """Of one family and kind, one after the other; there is one at least.

    Byte by byte: numpy would give fields that share bytes bytes of their own.
    """
    if len(batches) == 1:
        return batches[0]
    content = bytearray().join(batch.records.tobytes() for batch in batches)
    return replace(batches[0], records=np.frombuffer(content, batches[0].records.dtype))


class ClockAnchor(Struct, frozen=True, kw_only=True):
    """``unix_ns = monotonic_ns + (anchor.unix_ns - anchor.monotonic_ns)``, from here on."""

    monotonic_ns: int
    unix_ns: int


class ProcessSeen(Struct, frozen=True, kw_only=True):
    """A process came into scope, or changed its program image; ``resource`` describes it from here on.

    ``parent``: the process that it was a child of then, 0 where that is not known. ``same_program``: it has changed
    nothing, and more is known of it: what was reported of it before is of the same process under a poorer name.
    ``payer``: whose share of what all have its telemetry takes, "" where nobody knows.
    """

    tgid: int
    time_ns: int
    resource: Resource
    parent: int = 0
    same_program: bool = False
    payer: str = ""


class RuntimesSeen(Struct, frozen=True, kw_only=True):
    """What a process serves requests with, from here on and before: names of :mod:`otelgpu.model.runtimes`."""

    tgid: int
    time_ns: int
    runtimes: tuple[str, ...]


class ProcessGone(Struct, frozen=True, kw_only=True):
    """A process ended; nothing of it arrives after this."""

    tgid: int
    time_ns: int


class FunctionNamed(Struct, frozen=True, kw_only=True):
    """An answer from the symbol tables: what ``address`` in process ``tgid`` is called.

    ``name`` is the demangled full form. Unknown symbols carry ``module+0xoffset`` and ``known`` False; of a launched
    kernel in a file also which file that is: ``module`` is its base name, ``offset`` is in bytes from its beginning.
    """

    tgid: int
    address: int
    name: str
    known: bool
    module: str = ""
    build_id: str = ""
    offset: int = 0


class LossCounted(Struct, frozen=True, kw_only=True):
    """Something was dropped, skipped or could not be read: ``count`` more since the last report."""

    family: str
    reason: str
    count: int


class RecordsLost(Struct, frozen=True, kw_only=True):
    """Records of a process that found no room, ``count`` more since the last report: of those in :class:`LossCounted`.

    Of a process that is not known any more, or of one of very many, there is none.
    """

    tgid: int
    family: str
    count: int


class CallsUnobserved(Struct, frozen=True, kw_only=True):
    """Some calls of a process had no probes, for so long since the last report; how many were made is not known."""

    tgid: int
    family: str
    duration_ns: int


class CallsCounted(Struct, frozen=True, kw_only=True):
    """Calls of function ``api`` that were counted in place of being recorded: ``count`` more since the last.

    ``kind`` is the :class:`~otelgpu.model.operations.OperationKind` of such calls; ``tgid`` is 0 for processes
    that the table of counts had no room for.
    """

    tgid: int
    family: str
    kind: int
    api: str
    count: int


class Tick(Struct, frozen=True, kw_only=True):
    """Every record that was submitted before ``time_ns`` (CLOCK_MONOTONIC) has been fed."""

    time_ns: int


Input = (
    Batch
    | ClockAnchor
    | ProcessSeen
    | RuntimesSeen
    | ProcessGone
    | FunctionNamed
    | StackNamed
    | LossCounted
    | RecordsLost
    | CallsUnobserved
    | CallsCounted
    | Tick
    | DeviceInput
    | FabricInput
    | ProcessPressed
    | SwitchesRead
)
