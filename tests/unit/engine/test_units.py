"""One unit for time on all that is exported: seconds, as OpenTelemetry has it, and the name does not repeat it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import otelgpu
from otelgpu.export import events as sdk_events
from tests.unit.engine.test_clashes import Claim, attributes, metrics, real

OTHER_UNITS: Final = {"ns", "us", "µs", "ms"}
_SUFFIX: Final = r"[._](ns|us|ms|s|sec|secs|nanos\w*|micros\w*|millis\w*|seconds|nanoseconds)"
SUFFIXED: Final = re.compile(_SUFFIX + "$")
MAY_HAVE_ONE: Final = re.compile(_SUFFIX + "[\"']")
"""In a module's text: to parse all of them takes seconds."""
NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_{}]+)+")
NOT_EXPORTED: Final = ("grpc.", "s.", "cpu.cfs_")
"""Options of gRPC have its names; columns of steps are called so in SQL, and so are files of cgroups."""


def names_of_tables() -> Iterator[str]:
    """Each metric and attribute of each table, and of the events of batch commands."""
    tables = real()
    yield from (claim.metric.name for claim in metrics(tables))
    for signals in tables.signals.values():
        if hasattr(signals, "summaries"):
            yield from attributes(signals)
    for owned in tables.descriptions:
        yield from owned.descriptions.attributes
    yield from (*sdk_events.METRICS, *sdk_events.ATTRIBUTES)


def literals(source: str) -> Iterator[str]:
    """Texts in a module that have the form of an exported name; what an f-string fills in is ``x``."""
    for node in ast.walk(ast.parse(source)):
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        if NAME.fullmatch(text) and not text.startswith(NOT_EXPORTED):
            yield text


def test_no_name_in_a_table_ends_in_a_unit_of_time() -> None:
    found = set(names_of_tables())
    assert len(found) > 400
    assert sorted(name for name in found if SUFFIXED.search(name)) == []


def test_no_metric_is_in_another_unit_of_time_than_seconds() -> None:
    claims: list[Claim] = list(metrics(real()))
    units = {claim.metric.name: claim.metric.unit for claim in claims}
    units |= {name: about[1] for name, about in sdk_events.METRICS.items()}
    assert "s" in units.values()
    assert {name: unit for name, unit in units.items() if unit in OTHER_UNITS} == {}


def test_no_dotted_name_in_the_program_ends_in_a_unit_of_time() -> None:
    """Of spans that are in no table as well, such as those of work on devices."""
    root = Path(otelgpu.__file__).parent
    found = [
        (text, str(path.relative_to(root)))
        for path in root.rglob("*.py")
        if MAY_HAVE_ONE.search(source := path.read_text())
        for text in literals(source)
    ]
    assert found
    assert sorted(each for each in found if SUFFIXED.search(each[0])) == []


def test_a_name_that_ends_in_one_is_found() -> None:
    source = '''a = "otelgpu.wait_ms", f"{vendor}.wait.seconds", "otelgpu.wait", f"{vendor}.wait_{unit}"'''
    assert MAY_HAVE_ONE.search(source)
    found = [text for text in literals(source) if SUFFIXED.search(text)]
    assert sorted(found) == ["otelgpu.wait_ms", "x.wait.seconds"]
