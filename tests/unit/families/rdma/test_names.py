"""Names of RDMA work: each one is described, and so is each reason that is counted."""

from __future__ import annotations

import re

from otelgpu.families.rdma import names as qp
from otelgpu.families.rdma.descriptions import DESCRIPTIONS
from otelgpu.families.rdma.fabric.session import REASONS
from otelgpu.families.rdma.loss import LOSSES
from otelgpu.families.rdma.port_counters import ROWS
from tests.unit.families.rdma.queue_pair_facts import Caller
from tests.unit.families.rdma.test_fabric import LATER, Host, event, transfer, used
from tools.document import ROOT

ROWS_OF_PAGE = DESCRIPTIONS.pages["queue pair attributes"].rows

_SOURCES = (
    *(
        ROOT / "otelgpu" / "families" / "rdma" / f"{name}.py"
        for name in (
            *("counts", "endpoints", "loss", "owners", "queue_pairs", "memory_regions"),
            *("metrics", "names", "spans", "fabric/session"),
        )
    ),
)
_REASON = re.compile(
    r'(?:counters\[|_count\()(?:\n\s*)?"(\w+)"(?: if .*? else "(\w+)")?', re.MULTILINE | re.DOTALL
)
_REPORTING = {
    "name",
    "trace",
    "id",
    "parent",
    "start",
    "end",
    "failed",
    "message",
    "links",
    "owner",
    "thread.id",
}


def test_every_reason_that_is_counted_is_described_and_no_other() -> None:
    found = {each for path in _SOURCES for pair in _REASON.findall(path.read_text()) for each in pair}
    assert found - {""} == REASONS.keys()


def test_every_attribute_of_a_metric_is_described() -> None:
    keys = {key for keys in qp.METRICS.values() for key in keys}
    assert keys <= ROWS_OF_PAGE.keys()


def test_every_attribute_of_a_span_is_described() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller, vendor_error=3), event(), transfer())
    reported = {key for span in host.report(LATER, final=True) for key in span} - _REPORTING
    assert qp.WORK_REQUEST in reported
    assert reported <= ROWS_OF_PAGE.keys()


def test_no_name_is_a_metric_and_an_attribute() -> None:
    assert not {metric.name for metric in qp.METRICS} & ROWS_OF_PAGE.keys()


def test_losses_are_counters_that_ports_are_known_to_have() -> None:
    assert LOSSES.keys() <= ROWS.keys()
