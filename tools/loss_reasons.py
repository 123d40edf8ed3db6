"""What can be lost, and what one count of it means: from the counters of the BPF programs and those of the code.

Most modules carry a table of their reasons with the words; those that do not have theirs in tools/meanings.py.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from tools import collective_tables, fabric_tables, profile_tables, queue_pair_tables, training_tables
from tools.meanings import LOSSES, words_for

ROOT: Final = Path(__file__).resolve().parent.parent
_COUNTING: Final = {
    "live.py": "live",
    "discover/described_processes.py": "live",
    "discover/probes.py": "probes",
    "kernel/holding.py": "live",
    "kernel/trace_context_map.py": "live",
    "kernel/overload.py": "cuda",
    "correlate/handoffs.py": "correlate",
    "correlate/returns.py": "correlate",
    "signals/devices.py": "devices",
}
"""Module that names its reasons where it counts them → the room under which they are told."""
_COUNTER: Final = re.compile(r"COUNTER_(\w+) =\s+\d+,\s*/\* (.*?) \*/")


def bpf_counters() -> dict[str, str]:
    """Counter of ``enum counter`` → its comment in bpf/lib/counters.h."""
    text = (ROOT / "bpf" / "lib" / "counters.h").read_text()
    return {name.lower(): meaning for name, meaning in _COUNTER.findall(text)}


def counted_in(source: str) -> set[str]:
    """Reasons that a module names where it counts: ``…counters["a" if … else "b"] += 1``."""
    found: set[str] = set()
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


def loss_reasons() -> dict[tuple[str, str], str]:
    """(``otelgpu.family``, ``otelgpu.reason``) → what one count means. ``*``: each family with probes."""
    from otelgpu.correlate.memory import COUNTERS as MEMORY_COUNTERS
    from otelgpu.correlate.steps import COUNTERS as STEP_COUNTERS
    from otelgpu.discover import kernel_names, process_context, symbols, thread_context
    from otelgpu.discover.communicators import REASONS as COMMUNICATOR_REASONS
    from otelgpu.discover.interpreters import REASONS as INTERPRETER_REASONS
    from otelgpu.discover.kubernetes_api import REASONS as KUBERNETES_REASONS
    from otelgpu.discover.profile_watcher import REASONS as STACK_REASONS
    from otelgpu.discover.resources import REASONS as IDENTITY_REASONS
    from otelgpu.discover.unwind_tables import REASONS as UNWIND_REASONS
    from otelgpu.discover.user_probes import REASONS as PROBE_REASONS
    from otelgpu.discover.verbs_providers import REASONS as PROVIDER_REASONS
    from otelgpu.families.http.session import COUNTERS
    from otelgpu.kernel.loader import COUNTED_BY_KERNEL
    from otelgpu.sensors.nvml import REASONS as DEVICE_REASONS
    from otelgpu.symbols import fatbin, functions, handles, registrations

    found = {("*", name): text for name, text in bpf_counters().items() if name != "submitted"}
    found |= {("*", name): text for name, text in COUNTED_BY_KERNEL.items()}
    found |= {("http", name): text for name, text in COUNTERS.items()}
    found |= {("memory", name): text for name, text in MEMORY_COUNTERS.items()}
    found |= {("steps", name): text for name, text in STEP_COUNTERS.items()}
    found |= {("devices", name): text for name, text in DEVICE_REASONS.items()}
    found |= {("identity", name): text for name, text in IDENTITY_REASONS.items()}
    found |= {("kubernetes", name): text for name, text in KUBERNETES_REASONS.items()}
    found |= {("nccl", name): text for name, text in COMMUNICATOR_REASONS.items()}
    found |= {("verbs", name): text for name, text in PROVIDER_REASONS.items()}
    found |= {("probe", name): text for name, text in PROBE_REASONS.items()}
    for reasons in (STACK_REASONS, INTERPRETER_REASONS, UNWIND_REASONS):
        found |= {("profile", name): text for name, text in reasons.items()}
    found |= fabric_tables.reasons()
    found |= queue_pair_tables.reasons()
    found |= collective_tables.reasons()
    found |= training_tables.reasons()
    found |= profile_tables.reasons()
    for module in (symbols, functions, registrations, fatbin, handles, kernel_names):
        found |= {("symbols", name): words_for(LOSSES, ("symbols", name)) for name in module.REASONS}
    for module in (thread_context, process_context):
        found |= {("contexts", name): words_for(LOSSES, ("contexts", name)) for name in module.REASONS}
    found |= {pair: words_for(LOSSES, pair) for pair in sorted(counted_in_source() - found.keys())}
    return found
