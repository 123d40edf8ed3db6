"""docs/reference/fabric.md reports of every metric, attribute, counter and code that the fabric's part has."""

from __future__ import annotations

import pytest

from otelgpu.families.rdma import hardware_errors
from otelgpu.families.rdma import port_counters as fabric_counters
from otelgpu.families.rdma import ports as fabric_ports
from otelgpu.families.rdma.descriptions import DESCRIPTIONS
from otelgpu.families.rdma.port_counters import METRICS, ROWS
from otelgpu.families.rdma.xids import ACTIONS, XIDS
from tools import document, loss_reasons

TEXT = (document.DOCS / "reference" / "fabric.md").read_text()


def test_every_metric_counter_and_code_is_there() -> None:
    cells = [metric.name for metric in METRICS] + list(ROWS) + list(ACTIONS)
    assert [cell for cell in cells if f"| `{cell}` |" not in TEXT] == []
    assert [code for code in XIDS if f"| {code} | `" not in TEXT] == []


@pytest.mark.parametrize("module", [fabric_counters, fabric_ports, hardware_errors], ids=lambda m: m.__name__)
def test_every_attribute_is_described(module: object) -> None:
    values = {
        name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)
    }
    keys = {value for name, value in values.items() if "." in value and not name.endswith("SCOPE")}
    rows = DESCRIPTIONS.pages["fabric attributes"].rows
    assert sorted(keys - rows.keys()) == []
    assert [key for key in rows if f"| `{key}` |" not in TEXT] == []


def test_every_reason_has_a_meaning() -> None:
    reasons = {pair: text for pair, text in loss_reasons.loss_reasons().items() if pair[0] == "fabric"}
    counted = loss_reasons.counted_in_source()
    assert len(reasons) > 10 and all(reasons.values())
    assert not any(room == "fabric" for room, _ in counted)  # they have tables of their own
