"""The views of ``otelgpu top``: those of the families, the processes with what each family says of one, this program.

No family is named here: what each adds is in its ``presentation.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from otelgpu.engine import losses, names
from otelgpu.engine.presentation import (
    AGENT,
    LOSSES,
    OF_PROCESS,
    PROCESSES,
    Column,
    How,
    TopTable,
    TopView,
    Unit,
    presentations,
    rate,
)
from otelgpu.engine.self_telemetry import CPU_TIME, MEMORY, RECORDS

_AGENT: Final = TopTable(
    name=AGENT,
    title="This program",
    keys={"process.pid": ("pid", "pid")},
    columns=(
        rate("cpu_share", "CPU", CPU_TIME.name, unit=Unit.SHARE),
        Column(key="memory_bytes", title="memory", how=How.TOTAL, metrics=(MEMORY.name,), unit=Unit.BYTES),
        rate("records_per_s", "records/s", RECORDS.name),
    ),
    sort="cpu_share",
)
_LOSSES: Final = TopTable(
    name=LOSSES,
    title="What was lost, dropped or could not be read",
    keys={names.LOSS_FAMILY: ("family", "family"), names.LOSS_REASON: ("reason", "reason")},
    columns=(
        rate("lost_per_s", "lost/s", losses.LOSSES.name, alarming=True),
        Column(key="lost", title="since start", how=How.TOTAL, metrics=(losses.LOSSES.name,)),
    ),
    sort="lost_per_s",
)
_LOST: Final = rate("lost_per_s", "lost/s", losses.RECORDS_LOST.name, alarming=True)
_LOST_RECORDS: Final = TopTable(
    name="lost_records",
    title="Records that were lost, by process",
    keys={**OF_PROCESS, names.LOSS_FAMILY: ("family", "family")},
    columns=(
        _LOST,
        Column(key="lost", title="since start", how=How.TOTAL, metrics=(losses.RECORDS_LOST.name,)),
    ),
    sort="lost_per_s",
)

_OBSERVED: Final = (
    Column(key="program", title="program", how=How.OBSERVED, metrics=(), unit=Unit.TEXT),
    Column(key="cpu_share", title="CPU", how=How.OBSERVED, metrics=(), unit=Unit.SHARE),
)
_PROBED: Final = (
    Column(key="probed_files", title="probed", how=How.OBSERVED, metrics=()),
    Column(key="unprobed_files", title="failed", how=How.OBSERVED, metrics=(), alarming=True),
)


@cache
def top_views() -> Mapping[str, TopView]:
    """All views by name, in the order in which they are listed."""
    found = [view for each in presentations() for view in each.views]
    own = TopView(
        name=AGENT, title="Agent", top_tables=(_AGENT, _LOSSES, _LOST_RECORDS), families=(), rank=_LAST + 1
    )
    views = sorted([*found, _processes(), own], key=lambda view: view.rank)
    return {view.name: view for view in views}


_LAST: Final = 100  # rank behind the families' views


def _processes() -> TopView:
    added = sorted(
        (each.process_columns for each in presentations() if each.process_columns is not None),
        key=lambda each: each.rank,
    )
    columns = (*_OBSERVED, *(column for each in added for column in each.columns), *_PROBED, _LOST)
    return TopView(
        name=PROCESSES,
        title="Processes",
        top_tables=(
            TopTable(name=PROCESSES, title="Processes", keys=OF_PROCESS, columns=columns, sort="cpu_share"),
        ),
        families=tuple(dict.fromkeys(family for each in added for family in each.families)),
        rank=_LAST,
    )
