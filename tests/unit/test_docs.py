"""The manual is complete: whatever a user can set, read or call is in docs/, as the code has it now."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
import pytest
import yaml

from otelgpu.config import Config, load_config
from otelgpu.elf.btf import Btf
from otelgpu.engine import names
from otelgpu.engine.exchange_signals import exchange_signals
from otelgpu.engine.losses import LOSSES
from otelgpu.export.otlp.sender import LOSS_REASONS
from otelgpu.families.nccl.discover import communicators
from otelgpu.families.rdma.discover import providers as verbs_providers
from otelgpu.families.steps import names as step_names
from otelgpu.families.steps.hints import HINTS
from otelgpu.families.steps.serving.metrics import METRICS
from otelgpu.processes.jobs import job_attributes
from otelgpu.processes.listing import ProcessFacts
from otelgpu.processes.resources import process_resource
from tools import document, loss_reasons, signal_tables
from tools.examples import exchanges_reported, full_exchange, step_attributes

DOCS = document.DOCS
OBJECTS = document.ROOT / "otelgpu" / "_bpf"
_NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*")
EXPORT_SETTINGS = document.ROOT / "otelgpu" / "export" / "otlp" / "settings.py"


def read(name: str) -> str:
    return (DOCS / name).read_text()


def signals_of_all() -> str:
    """What all families have in common, and the page of each."""
    return "".join(
        (read("reference/signals.md"), *(path.read_text() for path in sorted(document.PAGES.glob("*.md"))))
    )


def section(text: str, title: str) -> str:
    """From a heading to the next one of its level."""
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def test_generated_regions_and_pages_are_up_to_date() -> None:
    """In a process of its own: other tests have given this one families and protocols."""
    checked = subprocess.run(
        [sys.executable, "-m", "tools.document", "--check"],
        cwd=document.ROOT,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, (
        f"run: .venv/bin/python -m tools.document\n{checked.stdout}{checked.stderr}"
    )


@pytest.mark.parametrize("path", sorted(document.MAN.glob("*.1")), ids=lambda path: path.stem)
def test_a_manual_page_is_roff_that_a_pager_shows(path: Path) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("needs groff to read manual pages")
    command = [groff, "-man", "-Kutf8", "-Tutf8", "-ww", "-P-cbou", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0
    assert not [line for line in shown.stderr.splitlines() if "adjust line" not in line]  # a long word
    assert path.stem in shown.stdout
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"):
        assert f"\n{heading}\n" in shown.stdout


def test_every_region_is_used() -> None:
    used = set(
        re.findall(r"<!-- generated: ([\w -]+) -->", "".join(p.read_text() for p in DOCS.rglob("*.md")))
    )
    assert used == set(document.REGIONS)


def test_a_stale_region_is_noticed() -> None:
    stale = "before\n<!-- generated: buckets -->\nold\n<!-- end -->\nafter\n"
    renewed = document.renewed(stale)
    assert "old" not in renewed
    assert (renewed.startswith("before\n"), renewed.endswith("<!-- end -->\nafter\n")) == (True, True)


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(Config)])
def test_every_setting_is_documented(field: str) -> None:
    row = next(
        line for line in read("reference/configuration.md").splitlines() if line.startswith(f"| `{field}`")
    )
    assert f"`OTELGPU_{field.upper()}`" in row


def test_the_example_file_is_valid_and_complete(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", read("reference/configuration.md"), re.DOTALL)
    assert example is not None
    file = tmp_path / "otelgpu.yaml"
    file.write_text(example[1])
    load_config(file, {}, {})
    assert set(yaml.safe_load(example[1])) == {field.name for field in msgspec.structs.fields(Config)}


def test_every_standard_variable_that_is_read_is_documented() -> None:
    options = set(
        re.findall(r'(?:find|file|_choice|_boolean)\((?:look, )?"([A-Z_]+)"', EXPORT_SETTINGS.read_text())
    )
    assert {"ENDPOINT", "HEADERS", "CERTIFICATE", "INSECURE"} <= options  # the pattern still finds them
    text = read("reference/configuration.md")
    assert [option for option in options if f"`OTEL_EXPORTER_OTLP_{option}`" not in text] == []


@pytest.mark.parametrize("name", list(document.commands()))
def test_every_command_has_a_section_with_its_options(name: str) -> None:
    text = section(read("reference/cli.md"), f"otelgpu {name}")
    assert "**Exit code:**" in text
    assert f"    otelgpu {name}" in text
    for option in document.options(document.commands()[name]):
        for flag in (*option.opts, *option.secondary_opts):
            assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text), f"{name} {flag}"


@pytest.mark.parametrize("name", list(document.commands()))
def test_every_option_says_what_it_does(name: str) -> None:
    silent = [option.name for option in document.options(document.commands()[name]) if not option.help]
    assert silent == []


def test_the_documented_commands_parse() -> None:
    lines = re.findall(
        r"^(?:\w+=\S+ )?otelgpu ([\w-]+)(.*)$", "".join(_blocks(read("reference/cli.md"))), re.MULTILINE
    )
    assert len(lines) > 10
    for name, rest in lines:
        command = document.commands()[name]
        words = re.sub(r"\$\([^)]*\)", "1", rest.partition("|")[0]).split()
        if "[options]" not in words:
            command.make_context(name, words, resilient_parsing=False).close()


def _blocks(text: str) -> list[str]:
    return re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_every_metric_is_documented() -> None:
    found = {spec.metric.name for spec in signal_tables.operation_metrics()} | {LOSSES.name}
    found |= {metric.name for metric in METRICS}
    found |= {metric.name for table in signal_tables.metric_tables() for metric in table.metrics}
    exchanges = exchanges_reported(full_exchange())
    for signals in exchange_signals().values():
        found |= {measured.metric.name for measured in signals.metrics(exchanges, ["/"] * len(exchanges))}
    assert {
        "rpc.client.call.duration",
        "gen_ai.client.token.usage",
    } <= found  # the examples report everything
    assert sorted(name for name in found if f"| `{name}` |" not in signals_of_all()) == []


def test_every_attribute_of_the_families_is_documented() -> None:
    keys: set[str] = set()
    for operations in signal_tables.operation_signals().values():
        keys |= {operations.kernel_name} - {""} | {total.key for total in operations.summaries}
        keys |= {spec.key for specs in operations.attributes.values() for spec in specs}
        keys |= {key for specs in operations.labels.values() for key, *_ in specs}
        keys |= {spec.attribute[0] for spec in operations.metrics if spec.attribute}
    for signals in exchange_signals().values():
        for exchange in exchanges_reported(full_exchange()):
            keys |= document.exchange_attributes(signals, exchange).keys()
    assert sorted(key for key in keys if f"`{key}`" not in signals_of_all()) == []


def test_every_shared_name_is_documented() -> None:
    values = [value for name, value in vars(names).items() if name.isupper() and name != "SCHEMA_URL"]
    shared = [name for value in values for name in ((value,) if isinstance(value, str) else value)]
    assert [name for name in shared if f"`{name}`" not in signals_of_all()] == []


def test_the_decision_tree_has_every_reason_of_unattributed_work() -> None:
    tree = re.search(r"```mermaid\n(.*?)```", read("how-to/unattributed-work.md"), re.DOTALL)
    assert tree is not None
    assert [reason for reason in names.UNATTRIBUTED_REASONS if reason not in tree[1]] == []


def test_what_options_cost_is_what_was_measured() -> None:
    measured = "".join(read(f"reference/measured/{page}.md") for page in ("benchmarks", "gpu-results"))
    rows = [line.split(" | ") for line in read("how-to/overhead.md").splitlines() if line.startswith("| ")]
    figures = {figure for row in rows[2:] if row[2] != "– |" for figure in _NUMBER.findall(row[1])}
    assert {"3.5", "331"} <= figures
    spaced = {figure.replace(",", " ") for figure in figures}
    assert (
        sorted(each for each in spaced if not re.search(rf"(?<![\d.]){re.escape(each)}(?!\d)", measured))
        == []
    )


def test_every_name_of_steps_is_documented() -> None:
    values = {value for name, value in vars(step_names).items() if name.isupper() and isinstance(value, str)}
    text = read("reference/steps.md") + signals_of_all()
    assert sorted(value for value in values - {step_names.HINT_EVIDENCE} if f"`{value}`" not in text) == []


def test_the_examples_raise_every_hint() -> None:
    found = {key for keys in step_attributes().values() for key in keys}
    assert {step_names.HINT_EVIDENCE + name for name in HINTS} <= found


JOB = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "SLURM_JOB_ID": "7"}


def test_every_resource_attribute_is_documented() -> None:
    text = dict.fromkeys(ProcessFacts.__struct_fields__, "x")
    facts = ProcessFacts(
        **text
        | {"tgid": 1, "ns_pids": (1,), "ppid": 0, "start_time_ns": 1, "uid": 0, "seccomp": 0}
        | {"command": ("python3", "serve.py"), "executable": "/usr/bin/python3", "resource_attributes": ""}
        | {"placed_by": "cgroup", "job": tuple(job_attributes(JOB).items())}  # type: ignore[arg-type]
    )
    keys = [key for key, _ in process_resource(facts, {"host.name": "h"}).attributes]
    assert [key for key in keys if f"`{key}`" not in section(read("reference/signals.md"), "Resource")] == []


@pytest.mark.parametrize("family", ["cuda", "http", "nccl", "process", "sched", "verbs"])
def test_every_bpf_counter_is_documented(family: str) -> None:
    path = OBJECTS / f"{family}.bpf.o"
    if not path.exists():
        pytest.skip(f"{path} is not built: make bpf")
    from otelgpu.kernel.loader import Image

    enumerators = Btf(Image(family, path.read_bytes()).btf_section).enumerators("counter")
    reasons = {name.removeprefix("COUNTER_").lower() for name in enumerators} - {"count"}
    losses = section(read("reference/signals.md"), "Losses")
    assert sorted(reason for reason in reasons if f"`{reason}`" not in losses) == []
    assert reasons == set(loss_reasons.bpf_counters())  # the comments are those of this object


def test_reasons_that_a_family_has_of_its_own_are_documented(tmp_path: Path) -> None:
    header = tmp_path / "hip" / "hip.h"
    header.parent.mkdir()
    header.write_text("""
enum hip_counter {
	COUNTER_QUEUE_UNKNOWN = COUNTER_COUNT, /* a launch on a queue that
						* was not seen */
	COUNTER_GRAPH_CUT,		       /* nodes beyond the bound */
	HIP_COUNTER_COUNT,
};
""")
    assert loss_reasons.family_counters(tmp_path) == {
        ("hip", "queue_unknown"): "a launch on a queue that was not seen",
        ("hip", "graph_cut"): "nodes beyond the bound",
    }
    assert loss_reasons.family_counters().keys() <= loss_reasons.loss_reasons().keys()


def test_every_reason_that_python_counts_is_documented() -> None:
    losses = signals_of_all()
    missing = [pair for pair in loss_reasons.loss_reasons() if f"| `{pair[1]}` |" not in losses]
    assert missing == []
    # The patterns still find them.
    assert {("probes", "probes_refused"), ("http", "telemetry_exports")} <= loss_reasons.counted_in_source()
    assert {
        ("correlate", "handoffs_ambiguous"),
        ("capture", "write_failed"),
    } <= loss_reasons.counted_in_source()


def test_no_module_counts_what_no_page_describes() -> None:
    counted = set()
    for path in (document.ROOT / "otelgpu").rglob("*.py"):
        counted |= loss_reasons.counted_in(path.read_text())
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    assert {"drain_postponed", "file_unreadable"} <= counted  # the second in a conditional expression
    assert sorted(reason for reason in counted if f"`{reason}`" not in pages) == []


@pytest.mark.parametrize(
    ("family", "modules", "reasons"),
    [
        ("nccl", "families/nccl/discover", communicators.REASONS),
        ("verbs", "families/rdma/discover", verbs_providers.REASONS),
    ],
    ids=["nccl", "verbs"],
)
def test_watchers_describe_what_they_count_and_nothing_else(
    family: str, modules: str, reasons: Mapping[str, str]
) -> None:
    sources = [path.read_text() for path in (document.ROOT / "otelgpu" / modules).glob("*.py")]
    counted = set().union(*map(loss_reasons.counted_in, sources))
    counted |= set(re.findall(r'raise NoProvider\("(\w+)"\)', "".join(sources)))
    assert counted <= reasons.keys()
    text = "".join(sources)
    assert [
        reason for reason in reasons if text.count(f'"{reason}"') < 2
    ] == []  # in the table, and where it is counted
    assert {(family, reason) for reason in reasons} <= loss_reasons.loss_reasons().keys()


def test_no_reason_is_described_that_nobody_counts() -> None:
    sources = [*(document.ROOT / "otelgpu").rglob("*.py"), *(document.ROOT / "bpf").rglob("*.[ch]")]
    # In its table, and where it is counted: there perhaps without a prefix, which what it is counted by puts before it.
    named = Counter(word for path in sources for word in re.findall(r"\w+", path.read_text().lower()))
    described = {name for table in loss_reasons.tables() for name in table}
    assert (
        sorted(name for name in described if named[name] < 2 and not any(map(named.get, _ends(name)))) == []
    )


def _ends(name: str) -> list[str]:
    """``code_gone`` and ``gone`` of ``python_code_gone``."""
    words = name.split("_")
    return ["_".join(words[first:]) for first in range(1, len(words))]


def test_every_reason_of_the_exporters_is_described() -> None:
    assert {*LOSS_REASONS, "unencodable", "write_failed"} == loss_reasons.export_reasons().keys()


def test_the_command_table_is_walked() -> None:
    assert all(isinstance(command, click.Command) for command in document.commands().values())
    assert {"run", "attach", "agent", "record", "replay", "check"} <= document.commands().keys()
