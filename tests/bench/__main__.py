"""All benchmarks: ``python -m tests.bench [--only NAME…] [--json FILE] [--quick]``.

Prints one table and writes JSON. Nothing is asserted: a row outside its budget says NO, and the exit code is 0
unless a benchmark could not run at all.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from tests.bench import machine
from tests.bench.programs import BUILD, BenchError
from tests.bench.rows import Row, not_measured, show
from tests.rig import RigError

BENCHES = {
    "bridge": "bench_bridge",
    "encode": "bench_encode",
    "http": "bench_http",
    "protocols": "bench_protocols",
    "inject": "bench_inject",
    "pipeline": "bench_pipeline",
    "collector": "bench_collector",
    "compression": "bench_compression",
    "agent": "bench_agent",
    "probe": "bench_probe",
    "launches": "bench_launches",
    "nccl": "bench_nccl",
    "verbs": "bench_verbs",
    "rdma": "bench_rdma",
    "syscall": "bench_syscall",
    "socket": "bench_socket",
    "handoffs": "bench_handoffs",
    "latency": "bench_latency",
    "profile": "bench_profile",
    "profile_truth": "bench_profile_truth",
    "profile_waits": "bench_profile_waits",
    "flame_graph": "bench_flame_graph",
    "start": "bench_start",
    "top": "bench_top",
    "diagnose": "bench_diagnose",
    "tables": "bench_tables",
}
NEED_ROOT = {
    "pipeline",
    "profile",
    "collector",
    "compression",
    "agent",
    "probe",
    "launches",
    "verbs",
    "syscall",
    "socket",
    "handoffs",
    "latency",
    "start",
    "top",
}


def run(name: str, *, quick: bool) -> tuple[list[Row], bool]:
    """One benchmark's rows, and whether it ran."""
    if name in NEED_ROOT and os.geteuid() != 0:
        return [not_measured(name, "everything", "", "needs root")], True
    # Imported one at a time: what one of them needs shall not hinder the others.
    try:
        rows: list[Row] = importlib.import_module(f"tests.bench.{BENCHES[name]}").rows(quick)
    except (BenchError, RigError, OSError, ImportError) as error:
        return [not_measured(name, "everything", "", str(error) or type(error).__name__)], False
    return rows, True


def _keep_bytecode() -> None:
    """An installed otelgpu has its bytecode; this checkout's is kept under build/, where root may write."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(BUILD / "pycache")


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    arguments.add_argument(
        "--only", nargs="+", choices=list(BENCHES), metavar="NAME", help=", ".join(BENCHES)
    )
    arguments.add_argument("--json", type=Path, default=BUILD.parent / "bench.json", metavar="FILE")
    arguments.add_argument(
        "--quick", action="store_true", default=bool(os.environ.get("OTELGPU_BENCH_QUICK"))
    )
    options = arguments.parse_args()
    logging.basicConfig(level=logging.ERROR)
    console = Console(width=max(Console().width, 150))

    _keep_bytecode()
    described = machine.describe()
    rows: list[Row] = []
    failed = False
    for name in options.only or BENCHES:
        began = time.monotonic()
        console.print(f"{name} …", style="dim", end=" ")
        found, ran = run(name, quick=options.quick)
        console.print(f"{time.monotonic() - began:.0f} s", style="dim", highlight=False)
        rows += found
        failed |= not ran
    described["load_average_at_the_end"] = round(os.getloadavg()[0], 2)
    console.print(", ".join(f"{key} {value}" for key, value in described.items()), highlight=False)
    if described["other_bpf_programs"]:
        console.print(
            f"{described['other_bpf_programs']} BPF programs of others were loaded: the costs below hold theirs too"
        )
    show(rows, console)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": described, "quick": options.quick, "rows": [row.as_json() for row in rows]}
    options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    console.print(f"written to {options.json}", highlight=False)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
