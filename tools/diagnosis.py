"""What the manual says of ``otelgpu diagnose`` and ``topology``, and their code knows: classes, causes, bounds."""

from __future__ import annotations

import ast
import inspect
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import msgspec

from otelgpu.cli.rule_files import known_rules
from otelgpu.cli.utilization import installed_peaks
from otelgpu.diagnose.memory import diagnosis as memory_diagnosis
from otelgpu.diagnose.memory import growth
from otelgpu.diagnose.memory.categories import CATEGORIES
from otelgpu.diagnose.memory.categories import RULES as CATEGORY_RULES
from otelgpu.diagnose.memory.verdicts import CAUSES as MEMORY_CAUSES
from otelgpu.diagnose.ranks import (
    batches,
    communication,
    evaluations,
    facts,
    hangs,
    marks,
    missing,
    peers,
    replay,
    slowdowns,
    stages,
    workers,
)
from otelgpu.diagnose.ranks.verdicts import CLASSES
from otelgpu.diagnose.rules.rule import Rule
from otelgpu.diagnose.stall import compiling, critical, diagnosis, gaps, holders, processor, rhythm
from otelgpu.diagnose.stall.causes import CAUSES
from otelgpu.diagnose.stall.verdicts import CLASSES as STALL_CLASSES
from otelgpu.diagnose.stall.verdicts import StallReport, StallVerdict
from otelgpu.diagnose.utilization import devices, findings, idle, job_findings, lost
from otelgpu.diagnose.utilization import diagnosis as utilization_diagnosis
from otelgpu.diagnose.utilization.causes import CAUSES as LOW_USES
from otelgpu.diagnose.utilization.verdicts import CLASSES as UTILIZATION_CLASSES
from otelgpu.topology.affinity import WORDS
from otelgpu.topology.graph import KINDS
from tools.markdown import code, table

RULES = (
    workers,
    peers,
    communication,
    stages,
    batches,
    slowdowns,
    hangs,
    missing,
    replay,
    facts,
    marks,
    evaluations,
)

STALL_RULES = (gaps, rhythm, critical, processor, compiling, holders, diagnosis)

GALLERY = Path(__file__).parent.parent / "tests" / "gallery" / "recorded" / "results.json"
"""What ``python -m tests.gallery.results`` wrote."""

UTILIZATION_RULES = (findings, job_findings, idle, devices, lost, utilization_diagnosis)


def classes() -> str:
    """The table of classes."""
    return table(("Class", "Meaning"), ((code(name), text) for name, text in CLASSES.items()))


def known_problems() -> str:
    """The table of the rules that are installed."""
    return table(
        ("Rule", "Problem", "Seen by", "Source"),
        (
            (code(rule.id), rule.problem, _signs(rule), f"<{rule.source}>")
            for rule in sorted(known_rules(), key=lambda rule: rule.id)
        ),
    )


def _signs(rule: Rule) -> str:
    evidence = sorted({sign.name for sign in rule.evidence})
    signs = [
        *(code(each) for each in (*rule.codes, *rule.functions)),
        *(["a log"] if rule.logs else []),
        *(f"evidence {code(name)}" for name in evidence),
    ]
    return ", ".join(signs)


def stall_classes() -> str:
    """The table of classes of ``diagnose stall``."""
    return table(("Class", "Meaning"), ((code(name), text) for name, text in STALL_CLASSES.items()))


def stall_causes() -> str:
    """The table of causes: what they mean, from which share on they are said of every step alike, what to do."""
    rows = (
        (code(name), cause.meaning, "never" if cause.steady is None else f"{cause.steady:.0%}", cause.next)
        for name, cause in CAUSES.items()
    )
    return table(("Cause", "Meaning", "In every step alike", "What to do"), rows)


def stall_schema() -> str:
    """The JSON schema of what ``diagnose stall --json`` writes."""
    made = msgspec.json.schema(StallReport)
    verdict = made["$defs"][StallVerdict.__name__]["properties"]
    verdict["class"]["enum"], verdict["cause"]["enum"] = list(STALL_CLASSES), ["", *CAUSES]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What otelgpu diagnose stall --json writes",
    }
    return json.dumps({**head, **made}, indent=2) + "\n"


def stall_gallery() -> str:
    """What was said of the programs of the gallery when they were last recorded: the confusion table."""
    found = json.loads(GALLERY.read_bytes())
    labels: dict[str, Counter[str]] = {}
    for each in found["programs"].values():
        labels.setdefault(each["label"], Counter())[each["named"]] += 1
    rows = (
        (
            code(label) if label != "nothing" else label,
            str(counts.total()),
            ", ".join(
                f"{code(named) if named != 'nothing' else named} {count}" for named, count in counts.items()
            ),
        )
        for label, counts in labels.items()
    )
    faults = {label: counts for label, counts in labels.items() if label != "nothing"}
    right = sum(counts[label] for label, counts in faults.items())
    total, healthy = sum(counts.total() for counts in faults.values()), labels.get("nothing", Counter())
    least, most = found["load"]
    return (
        f"Recorded on {' to '.join(dict.fromkeys(found['dates']))}, {found['cpus']} CPUs, Linux "
        f"{', '.join(found['kernels'])}, at a load of {least:.1f} to {most:.1f}: "
        f"{right} of {total} faults were named first ({right / total:.0%}), and nothing was said of "
        f"{healthy['nothing']} of {healthy.total()} healthy programs.\n\n"
        + table(("Label", "Programs", "Named first"), rows)
    )


def topology_marks() -> str:
    """The table of kinds of marks of ``otelgpu topology``, worst first."""
    return table(("Kind", "Meaning"), ((code(name), text) for name, text in KINDS.items()))


def topology_paths() -> str:
    """The table of paths between two devices, nearest first."""
    return table(("Path", "Meaning"), ((code(name), text) for name, text in WORDS.items()))


def bounds(rules: Sequence[ModuleType] = RULES) -> str:
    """Every number that a rule compares with, and why it is that one."""
    rows = (
        (code(f"{_name(rule)}.{name}"), value, why) for rule in rules for name, value, why in constants(rule)
    )
    return table(("Bound", "Value", "Why"), rows)


def stall_bounds() -> str:
    """The same of ``diagnose stall``."""
    return bounds(STALL_RULES)


def memory_categories() -> str:
    """The table of categories of ``diagnose memory``: what is in them, and by which frames."""
    by = {name: [] for name in CATEGORIES}  # type: dict[str, list[str]]
    for rule in CATEGORY_RULES:
        both = " in ".join(code(each.replace("|", "\\|")) for each in (rule.function, rule.file) if each)
        by[rule.category].append(f"{rule.kind}: {both}")
    rows = ((code(name), text, "; ".join(by[name])) for name, text in CATEGORIES.items())
    return table(("Category", "What is in it", "Frames that say so: function, in file"), rows)


def memory_causes() -> str:
    """The table of causes of ``diagnose memory``."""
    return table(("Cause", "Meaning"), ((code(name), text) for name, text in MEMORY_CAUSES.items()))


def memory_bounds() -> str:
    """Its bounds."""
    return bounds((growth, memory_diagnosis))


def utilization_classes() -> str:
    """The table of classes of ``diagnose utilization``."""
    return table(("Class", "Meaning"), ((code(name), text) for name, text in UTILIZATION_CLASSES.items()))


def utilization_causes() -> str:
    """The table of causes: what they mean, the evidence that each takes, what to do."""
    rows = (
        (cause.group, code(name), cause.meaning, cause.seen, cause.next) for name, cause in LOW_USES.items()
    )
    return table(("Of", "Cause", "Meaning", "Seen by", "What to do"), rows)


def utilization_bounds() -> str:
    """Likewise."""
    return bounds(UTILIZATION_RULES)


def peaks() -> str:
    """The table of what devices can do at most."""
    rows = []
    for peak in installed_peaks():
        tflops = ", ".join(f"{name} {value:g}" for name, value in peak.tflops.items())
        links = "–" if peak.nvlink_gb_per_s is None else f"{peak.nvlink_gb_per_s:g}"
        models, bandwidth = ", ".join(map(code, peak.models)), f"{peak.memory_gb_per_s:g}"
        rows.append(
            (models, str(peak.sms), tflops, bandwidth, links, f"{peak.pcie_gb_per_s:g}", f"<{peak.source}>")
        )
    names = ("Device", "SMs", "TFLOP/s, dense", "Memory, GB/s", "NVLink, GB/s", "PCIe, GB/s", "Source")
    return table(names, rows)


def constants(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Name, value as it is written, and docstring of its public numbers that say why."""
    body = ast.parse(inspect.getsource(module)).body
    for node, text in pairwise(body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.value is None:
            continue
        number = getattr(module, node.target.id)
        if node.target.id.startswith("_") or not isinstance(number, int | float):
            continue
        has_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if has_text:
            why = " ".join(str(text.value.value).split())  # type: ignore[attr-defined]
            yield node.target.id, _written(node.value), why


def _written(value: ast.expr) -> str:
    return ast.unparse(value).replace("float(np.log(", "ln(").replace("))", ")").replace("_", " ")


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]
