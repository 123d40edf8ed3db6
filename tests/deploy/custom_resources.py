"""Objects of custom kinds against the schemas of their definitions in ``crds/``, as a strict API server does.

An API server alone knows the rules in CEL (``x-kubernetes-validations``): tests/cluster asks one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml

FOLDER: Final = Path(__file__).parent / "crds"


def validate(given: dict[str, Any]) -> None:
    """Raises :class:`jsonschema.ValidationError` for what its kind does not allow, an unknown field among that."""
    jsonschema.validate(given, _schema(given["apiVersion"], given["kind"]))


def definitions() -> list[dict[str, Any]]:
    """Each CustomResourceDefinition."""
    return [yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))]


@cache
def _schema(version: str, kind: str) -> dict[str, Any]:
    group, _, wanted = version.partition("/")
    for each in definitions():
        spec = each["spec"]
        if (spec["group"], spec["names"]["kind"]) != (group, kind):
            continue
        for served in spec["versions"]:
            if served["name"] == wanted and served["served"]:
                schema: dict[str, Any] = _strict(served["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                return schema
    raise LookupError(f"no definition of {version} {kind} in {FOLDER.name}/")


def _strict(schema: Any) -> Any:
    """The same, where objects with named fields have no others."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) for key, value in schema.items()}
    if isinstance(schema.get("pattern"), str):  # Go's flags may stand after the beginning, Python's may not
        found["pattern"] = schema["pattern"].replace("^(?i)", "(?i)^")
    known = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if known and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found
