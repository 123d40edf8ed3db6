"""Writes what `measure` found into the marked region of docs/reference/measured/kernels.md.

``python -m tests.vm.table``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from tests.vm.features import FEATURES
from tests.vm.kernels import SUITES
from tests.vm.measure import RESULTS

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "measured" / "kernels.md"
_REGION: Final = re.compile(r"(<!-- measured: kernels -->\n).*?(<!-- end -->)", re.DOTALL)
_Result = dict[str, Any]


def render(results: list[_Result]) -> str:
    """Markdown: a table of features by kernel, then what `otelgpu check` said where something was missing."""
    releases = [result["release"] for result in results]
    rows = [["", *releases], ["---"] * (len(releases) + 1)]
    families = list(dict.fromkeys(each["name"] for result in results for each in result["check"]["families"]))
    for family in families:
        rows.append([f"BPF object `{family}`", *(_loads(result, family) for result in results)])
    rows += [[feature, *(_outcome(result, feature) for result in results)] for feature in FEATURES]
    parts = ["".join("| " + " | ".join(row) + " |\n" for row in rows)]
    parts += [_messages(result) for result in results]
    return "\n".join(part for part in parts if part)


def _loads(result: _Result, family: str) -> str:
    found = [each for each in result["check"]["families"] if each["name"] == family]
    if not found:
        return "–"
    return {True: "loads", False: "**refused**", None: "not tried"}[found[0]["present"]]


def _outcome(result: _Result, feature: str) -> str:
    outcome = result["features"].get(feature)
    if outcome is None:
        return "not measured" if result["check"]["families"][0]["present"] else "no"
    return "yes" if outcome == "passed" else "**fails**"


def _messages(result: _Result) -> str:
    """What is missing, as `otelgpu check` prints it, and the tests that failed, as they said it."""
    findings = result["check"]["features"] + result["check"]["families"]
    lines = [_line(each) for each in findings if each["present"] is False]
    lines += [
        f"- {feature}: `{_one_line(outcome)}`"
        for feature, outcome in result["features"].items()
        if outcome != "passed"
    ]
    return f"### Linux {result['release']}\n\n" + "\n".join(lines or ["Nothing is missing."]) + "\n"


def _line(finding: dict[str, Any]) -> str:
    """The verdict of a long one: the verifier's last line."""
    said = finding["detail"].strip().splitlines()
    detail = said[0] if len(said) == 1 else f"{said[0]} … {said[-1].strip()}"
    so = f" – {finding['consequence']}" if finding["consequence"] else ""
    return f"- {finding['name']}: `{detail}`{so}"


def _one_line(text: str) -> str:
    return " ".join(text.replace("`", "'").split())[:160]


def main() -> int:
    """Rewrite the page's region from build/vm."""
    files = [RESULTS / f"{line}.json" for line in SUITES]
    results = [json.loads(path.read_text()) for path in files if path.exists()]
    if not results:
        print("vm: nothing was measured yet: make test-kernels", file=sys.stderr)
        return 1
    page = PAGE.read_text()
    body = render(results)
    PAGE.write_text(_REGION.sub(lambda match: match[1] + body + match[2], page))
    print(f"  TABLE    {PAGE.relative_to(PAGE.parents[1])}: {len(results)} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
