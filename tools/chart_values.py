"""The values of the Helm chart, as docs/reference/chart.md lists them: of ``values.yaml`` and of its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tools.markdown import code, table

CHART: Final = Path(__file__).resolve().parent.parent / "deploy" / "helm" / "otelgpu"
_TYPES: Final = {
    "map": "map of strings",
    "duration": "duration",
    "environment": "list of variables",
    "array": "list",
}
"""Of the schema's types, and of its definitions, those that the manual calls otherwise."""


def schema() -> dict[str, Any]:
    """Of ``values.schema.json``."""
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


def defaults() -> dict[str, Any]:
    """Of ``values.yaml``."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def properties(of: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each value's path, ``collector.image``, and what the schema says of it; groups come before what is in them."""
    for name, each in of["properties"].items():
        yield path + name, each
        if "properties" in each:
            yield from properties(each, f"{path}{name}.")


def values() -> str:
    """A row for each value, and for each group of them."""
    rows, given = [], defaults()
    for path, each in properties(schema()):
        if path == "global":
            continue
        default = "" if "properties" in each else code(_value(given, path))
        rows.append((code(path), _type(each), default, each["description"]))
    return table(("Value", "Type", "Default", "Meaning"), rows)


def _value(of: Any, path: str) -> str:
    for name in path.split("."):
        of = of[name]
    return json.dumps(of, ensure_ascii=False)


def _type(of: Mapping[str, Any]) -> str:
    if "properties" in of:
        return "group"
    if "enum" in of:
        return ", ".join(map(code, of["enum"]))
    if "allOf" in of:
        (referred,) = of["allOf"]
        return _TYPES.get(referred["$ref"].rpartition("/")[2], "object")
    return _TYPES.get(of["type"], str(of["type"]))
