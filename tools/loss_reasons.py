"""What can be lost, and what one count of it means: from the counters of the BPF programs and those of the code.

Each table is beside what counts (:class:`otelgpu.model.losses.Reasons`); none is listed here.
"""

from __future__ import annotations

import ast
import json
import pkgutil
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import otelgpu
from otelgpu.model.losses import Nature, Reasons

EXPORT: Final = "export"
ROOT: Final = Path(__file__).resolve().parent.parent
_COUNTING: Final = {
    "sources/live.py": "live",
    "processes/described.py": "live",
    "processes/probes.py": "probes",
    "kernel/holding.py": "live",
    "kernel/trace_context_map.py": "live",
    "kernel/overload.py": "cuda",
    "engine/attribution/handoffs.py": "correlate",
    "engine/attribution/returns.py": "correlate",
    "families/gpu/devices/metrics.py": "devices",
}
"""Module that names its reasons where it counts them → the room under which they are reported."""
_BOUNDS: Final = ("connection_not_http", "connection_tls", "bytes_not_captured", "wait_stack_assumed")
"""Counters of BPF programs that are a bound or a filter at work."""
_COUNTER: Final = re.compile(r"COUNTER_(\w+)(?:\s*=\s*\w+)?,\s*/\* (.*?) \*/", re.DOTALL)
_FAMILYS: Final = re.compile(r"enum (\w+)_counter \{(.*?)\};", re.DOTALL)


def bpf_counters() -> dict[str, str]:
    """Counter of ``enum counter`` → its comment in bpf/lib/counters.h."""
    text = (ROOT / "bpf" / "lib" / "counters.h").read_text()
    return {name.lower(): meaning for name, meaning in _COUNTER.findall(text)}


def family_counters(bpf: Path = ROOT / "bpf") -> dict[tuple[str, str], str]:
    """(family, counter) of every ``enum <family>_counter`` below ``bpf`` → its comment."""
    found = {}
    for path in sorted((*bpf.rglob("*.h"), *bpf.rglob("*.bpf.c"))):
        for family, body in _FAMILYS.findall(path.read_text()):
            for name, meaning in _COUNTER.findall(body):
                words = meaning.replace("\n", " ").split()
                found[family, name.lower()] = " ".join(word for word in words if word != "*")
    return found


def counted_in(source: str) -> set[str]:
    """Reasons that a module names where it counts: ``…counters["a" if … else "b"] += 1``."""
    found: set[str] = set()
    if "counters" not in source:
        return found  # parsing is what takes time
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            counted = node.target.value
            name = counted.attr if isinstance(counted, ast.Attribute) else getattr(counted, "id", "")
            if name.endswith("counters"):
                found |= _choices(node.target.slice)
    return found


def _choices(node: ast.expr) -> set[str]:
    if isinstance(node, ast.IfExp):
        return _choices(node.body) | _choices(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def counted_in_source() -> set[tuple[str, str]]:
    """(room, reason) of every counter that Python code names as a literal."""
    package = ROOT / "otelgpu"
    found = set()
    for name, room in _COUNTING.items():
        found |= {(room, reason) for reason in counted_in((package / name).read_text())}
    for path in package.rglob("*.py"):
        text = path.read_text()
        found |= set(re.findall(r'self\._(?:losses\.add|loss)\(\s*"(\w+)", "(\w+)"', text))
        found |= set(re.findall(r'LossCounted\(family="(\w+)", reason="(\w+)"', text))
    return found


@cache
def tables() -> list[Reasons]:
    """Every table of reasons that a module has."""
    found: dict[int, Reasons] = {}
    for module in pkgutil.walk_packages(otelgpu.__path__, "otelgpu."):
        if module.name.endswith("__main__") or module.name.startswith("otelgpu.cli"):
            continue
        members = vars(import_module(module.name)).values()
        found |= {id(each): each for each in members if isinstance(each, Reasons)}
    return sorted(found.values(), key=lambda table: table.family)


def loss_reasons() -> dict[tuple[str, str], str]:
    """(``otelgpu.family``, ``otelgpu.reason``) → what one count means. ``*``: each family with probes."""
    found = {("*", name): text for name, text in bpf_counters().items() if name != "submitted"}
    found |= {(table.family, name): text for table in tables() for name, text in table.items()}
    for pair, text in family_counters().items():
        found.setdefault(pair, text)  # where a table says more of it, that is its meaning
    return {pair: text for pair, text in found.items() if pair[0] != EXPORT}


def export_reasons() -> dict[str, str]:
    """What an exporter counts, which has a metric of its own."""
    return {name: text for table in tables() if table.family == EXPORT for name, text in table.items()}


def natures() -> dict[tuple[str, str], Nature]:
    """(``otelgpu.family``, ``otelgpu.reason``) → what a count of it means, where that is not a loss."""
    found = {("*", name): Nature.INTENDED for name in _BOUNDS}
    return found | {
        (table.family, name): nature for table in tables() for name, nature in table.natures.items()
    }


def printed() -> dict[str, str]:
    """File name → the reasons of a room, as ``otelgpu.cli.losses`` reads them: ``{reason: [nature, meaning]}``."""
    of = natures()
    rooms: dict[str, dict[str, tuple[str, str]]] = {}
    exported = {(EXPORT, name): text for name, text in export_reasons().items()}
    for (room, name), text in (loss_reasons() | exported).items():
        nature = of.get((room, name), Nature.LOST)
        rooms.setdefault(room, {})[name] = (nature.value, " ".join(text.replace("`", "").split()))
    return {f"{'each' if room == '*' else room}.json": _lines(reasons) for room, reasons in rooms.items()}


def _lines(reasons: dict[str, tuple[str, str]]) -> str:
    """JSON with a reason a line."""
    lines = (f"  {json.dumps(name)}: {json.dumps(said)}" for name, said in sorted(reasons.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"
