"""Names of RDMA work: each one is described, and so is each reason that is counted."""

from __future__ import annotations

import re

from otelgpu.correlate.queue_pair_loss import LOSSES
from otelgpu.signals import queue_pair_names as qp
from otelgpu.signals.fabric_counters import ROWS
from otelgpu.signals.fabric_session import REASONS
from tests.unit.correlate.queue_pair_facts import Caller
from tests.unit.signals.test_fabric_session import LATER, Host, event, transfer, used
from tools import queue_pair_tables
from tools.document import ROOT

_SOURCES = (
    *(ROOT / "otelgpu" / "correlate").glob("queue_pair*.py"),
    *(ROOT / "otelgpu" / "signals").glob("queue_pair*.py"),
    ROOT / "otelgpu" / "correlate" / "regions.py",
    ROOT / "otelgpu" / "signals" / "fabric_session.py",
)
_REASON = re.compile(
    r'(?:counters\[|_count\()(?:\n\s*)?"(\w+)"(?: if .*? else "(\w+)")?', re.MULTILINE | re.DOTALL
)
_TELLING = {
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
    assert keys <= queue_pair_tables.ATTRIBUTES.keys()


def test_every_attribute_of_a_span_is_described() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller, vendor_error=3), event(), transfer())
    told = {key for span in host.tell(LATER, final=True) for key in span} - _TELLING
    assert qp.WORK_REQUEST in told
    assert told <= queue_pair_tables.ATTRIBUTES.keys()


def test_no_name_is_a_metric_and_an_attribute() -> None:
    assert not {metric.name for metric in qp.METRICS} & queue_pair_tables.ATTRIBUTES.keys()


def test_losses_are_counters_that_ports_are_known_to_have() -> None:
    assert LOSSES.keys() <= ROWS.keys()
