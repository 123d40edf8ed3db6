"""Writes what `measure` found into the marked region of docs/reference/measured/real-servers.md.

``python -m tests.servers.table``.

Of servers that were not measured here, what the region says of them stays.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterable
from typing import Any, Final

from tests.servers.measure import Result, result_path
from tests.servers.stacks import ROOT, STACKS

PAGE: Final = ROOT / "docs" / "reference" / "measured" / "real-servers.md"
_REGION: Final = re.compile(r"(<!-- measured: real servers -->\n).*?(<!-- end -->)", re.DOTALL)
_WHAT: Final = (
    ("requests", "requests"),
    ("missing", "no span"),
    ("twice", "two"),
    ("calls", "calls"),
    ("calls_missing", "no span"),
    ("calls_twice", "two"),
    ("incomplete", "incomplete"),
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_BUSY: Final = re.compile(r"load average of (\d+\.\d) to (\d+\.\d)")
_COSTS: Final = (("median_ms", 1), ("cpu_ms", 2))
_FACTS: Final = (
    "path",
    "route",
    "status",
    "error",
    "traceparent",
    "response id",
    "tokens",
    "estimated",
    "ttft",
    "rpc method",
    "rpc status",
    "messages",
)


Rows = dict[str, list[list[str]]]  # of a table, by server


def render(results: list[Result], before: str = "") -> str:
    """Markdown: what was wrong by server, then links, first tokens and durations by load. ``before``: the region."""
    tables = zip((_counts(results), _loads(results)), [*_rows_of(before), {}, {}], strict=False)
    return "\n".join(
        [_machine(results, before), *(_table(head, _merged(rows, old)) for (head, rows), old in tables)]
    )


def _rows_of(region: str) -> list[Rows]:
    """Of each table."""
    found: list[Rows] = []
    for line in region.splitlines():
        cells = line.strip("| ").split(" | ")
        if cells[0] == "server":
            found.append({})
        elif found and line.startswith("| ") and cells[0] != "---":
            found[-1].setdefault(cells[0], []).append(cells)
    return found


def _merged(rows: Iterable[list[str]], old: Rows) -> list[list[str]]:
    """By server, in their order: what is new, else what was there."""
    new: Rows = {}
    for row in rows:
        new.setdefault(row[0], []).append(row)
    return [row for stack in STACKS for row in new.get(stack.name, old.get(stack.name, []))]


def _machine(results: list[Result], before: str) -> str:
    dates = sorted({result["date"] for result in results} | set(_DATE.findall(before)))
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    busy = [result["load_average"] for result in results]
    busy += [float(value) for bounds in _BUSY.findall(before) for value in bounds]
    return (
        f"Measured on {when}: {os.cpu_count()} CPUs, Linux {platform.release()}, {platform.machine()}; what else the "
        f"machine did when a server's turn came: a load average of {min(busy):.1f} to {max(busy):.1f}.\n"
    )


def _counts(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    head = ["server", "made of", *(title for _, title in _WHAT), "wrong in a span", "lost or skipped"]
    return head, [
        [
            result["stack"],
            result["versions"],
            *(str(result["all"][key]) for key, _ in _WHAT),
            _wrong(result["all"]["wrong"]),
            result["lost"] or "–",
        ]
        for result in results
    ]


def _wrong(wrong: dict[str, int]) -> str:
    return ", ".join(f"{what} {wrong[what]}" for what in _FACTS if what in wrong) or "0"


def _loads(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    head = [
        *("server", "at once", "requests", "links right", "unattributed", "wrong"),
        *("TTFT after the server's, ms", "before the client's, ms", "answer before / observed / after, ms"),
        "CPU of the server for a request, the same, ms",
    ]
    return head, [
        [result["stack"], together, str(load["requests"]), *_links(load), *_latencies(load)]
        for result in results
        for together, load in result["loads"].items()
    ]


def _links(load: dict[str, Any]) -> list[str]:
    total = sum(load["links"].values())
    if not total:
        return ["–"] * 3  # it makes no calls
    right, none = (f"{load['links'].get(kind, 0) / total:.1%}" for kind in ("right", "unattributed"))
    return [right, none, str(load["links"].get("wrong", 0))]


def _latencies(load: dict[str, Any]) -> list[str]:
    ttft = (
        f"{load[key][0]:.2f} (p99 {load[key][1]:.2f})" if load[key] else "–"
        for key in ("ttft_after_server_ms", "ttft_before_client_ms")
    )
    costs = (" / ".join(f"{value:.{digits}f}" for value in load[key]) for key, digits in _COSTS)
    return [*ttft, *costs]


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "".join("| " + " | ".join(row) + " |\n" for row in [head, ["---"] * len(head), *rows])


def main() -> int:
    """Rewrite the page's region from build/servers."""
    files = [path for path in map(result_path, STACKS) if path.exists()]
    if not files:
        print("servers: nothing was measured yet: make test-servers", file=sys.stderr)
        return 1
    results = [json.loads(path.read_text()) for path in files]
    page = _REGION.sub(lambda match: match[1] + render(results, match[0]) + match[2], PAGE.read_text())
    PAGE.write_text(page)
    print(f"  WROTE    {PAGE.relative_to(ROOT)}: {len(files)} servers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
