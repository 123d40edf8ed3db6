"""docs/fabric.md tells of every metric, attribute, counter and code that the fabric's part has."""

from __future__ import annotations

import pytest

from otelgpu.signals import fabric_counters, fabric_ports, hardware_errors
from otelgpu.signals.fabric_counters import METRICS, ROWS
from otelgpu.signals.xids import ACTIONS, XIDS
from tools import document, fabric_tables, loss_reasons

TEXT = (document.DOCS / "fabric.md").read_text()


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
    assert sorted(keys - fabric_tables.ATTRIBUTES.keys()) == []
    assert [key for key in fabric_tables.ATTRIBUTES if f"| `{key}` |" not in TEXT] == []


def test_every_reason_has_a_meaning() -> None:
    reasons = fabric_tables.reasons()
    counted = loss_reasons.counted_in_source()
    assert all(room == "fabric" and text for (room, _), text in reasons.items())
    assert not any(room == "fabric" for room, _ in counted)  # they have tables of their own
