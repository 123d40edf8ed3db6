"""What a post and a poll cost the thread that makes them, by how much of them is probed.

Programs with a fake provider each (a copy of its own, as a probe is every process's that maps the file) post and
poll in a loop, one after the other in turn: bare, with all calls probed, within a budget, and with bpftrace's probes
that sum the same. Only ratios travel between machines: see bench_probe.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otelgpu.families.rdma.discover.contexts import find_contexts, locate
from otelgpu.kernel.loader import read_image
from otelgpu.processes.maps import executable_mappings
from tests.bench.programs import BUILD, BenchError, attached, observer
from tests.bench.rows import Budget, Row, median, not_measured, spread
from tests.rig.fakes import build_fakes
from tests.rig.verbs_client import VerbsClient

NAME: Final = "verbs_cost"
BUDGET_PERCENT: Final = 1.0
SETTLE_S: Final = 5.0  # in which the budget learns how often the program calls
QUICK_S: Final = 0.5
ALWAYS, BUDGETED, BPFTRACE = "always", f"budget of {BUDGET_PERCENT:g} %", "bpftrace, sums in maps"


class Client(VerbsClient):
    """With libraries of its own."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(build_fakes() / "verbs", folder)
        super().__init__(folder)
        self.do("open", "pair")

    def time(self, what: str, calls: int) -> float:
        """ns a call."""
        return float(self.ask(f"time_{what} {calls}")) / calls


def rows(quick: bool) -> list[Row]:
    rounds, calls = (2, 500) if quick else (25, 5_000)
    if not (build_fakes() / "verbs" / "verbs_client").exists():
        return [not_measured(NAME, "everything", "", "libibverbs-dev is not installed")]
    with tempfile.TemporaryDirectory(dir=BUILD) as folder, contextlib.ExitStack() as stack:
        names = ("bare", ALWAYS, BUDGETED, BPFTRACE)
        clients = {
            name: stack.enter_context(Client(Path(folder, str(number)))) for number, name in enumerate(names)
        }
        absent: list[Row] = []
        try:
            stack.enter_context(_bpftrace(clients[BPFTRACE].pid))
        except BenchError as error:
            absent.append(not_measured(NAME, BPFTRACE, "ns/call", str(error).splitlines()[0]))
            del clients[BPFTRACE]
        for name, budget in ((ALWAYS, 100.0), (BUDGETED, BUDGET_PERCENT)):
            stack.enter_context(
                attached(clients[name].pid, "--families", "verbs", "--rdma-budget", str(budget))
            )
        time.sleep(2)  # the provider is found at the next collection
        found = []
        for what in ("posts", "polls"):
            measured: dict[str, list[float]] = {name: [] for name in clients if name != BUDGETED}
            for _ in range(rounds):
                for name, times in measured.items():
                    times.append(clients[name].time(what, calls))
            found += _rows(what, measured)
        seconds, settle_s = (QUICK_S, QUICK_S) if quick else (10.0, SETTLE_S)
        found += [_slowdown(clients, what, seconds, settle_s) for what in ("polls", "posts")]
    return found + absent


def _rows(what: str, times: dict[str, list[float]]) -> list[Row]:
    bare = median(times["bare"])
    cost = {name: median(values) - bare for name, values in times.items() if name != "bare"}
    found = [Row(bench=NAME, name=f"{what}: bare call", value=bare, unit="ns/call")]
    if BPFTRACE not in cost:
        return [*found, Row(bench=NAME, name=f"{what}: otelgpu adds", value=cost[ALWAYS], unit="ns/call")]
    return [
        *found,
        Row(
            bench=NAME,
            name=f"{what}: otelgpu adds, all probed",
            value=cost[ALWAYS],
            unit="ns/call",
            baseline=BPFTRACE,
            baseline_value=cost[BPFTRACE],
            budget=Budget(limit=1, kind="at most", of="ratio"),
            note=f"otelgpu {spread(times[ALWAYS])}",
        ),
    ]


def _slowdown(clients: dict[str, Client], what: str, seconds: float, settle_s: float) -> Row:
    """Time that a thread loses that does nothing else, in per cent of it; in turns with the bare one."""
    at_a_time = int(50_000_000 / max(clients["bare"].time(what, 10_000), 1.0))  # 50 ms
    spent = {"bare": 0.0, BUDGETED: 0.0}
    settled = time.monotonic() + settle_s
    while time.monotonic() < settled:
        clients[BUDGETED].time(what, at_a_time)
    until = time.monotonic() + 2 * seconds
    while time.monotonic() < until:
        for name in spent:
            spent[name] += clients[name].time(what, at_a_time)
    return Row(
        bench=NAME,
        name=f"{what}: a thread that does nothing else loses, within its budget",
        value=100 * (spent[BUDGETED] / spent["bare"] - 1),
        unit="% of its time",
        note=f"--rdma-budget {BUDGET_PERCENT:g}, over {seconds:g} s each, after {SETTLE_S:g} s of the same",
    )


@contextlib.contextmanager
def _bpftrace(pid: int) -> Iterator[None]:
    """The same by hand: posts, their bytes and failures by queue pair; completions of polls."""
    offsets = read_image("verbs").btf.enumerators("verbs_context_offset")
    functions = next(find_contexts(pid, offsets), None)
    if functions is None:
        raise BenchError("the fake's context was not found")
    places = {each.symbol: each for each in locate(functions, executable_mappings(pid))}
    library = places["post_send"].mapping.path
    program = POSTED.replace("POST", f"{library}:{places['post_send'].offset:#x}").replace(
        "POLL", f"{library}:{places['poll_cq'].offset:#x}"
    )
    with observer(["bpftrace", "--unsafe", "-e", program], "attached", settle_s=1.0):
        yield


POSTED: Final = """
uprobe:POST {
  @wr[tid] = arg1;
  @queue[tid] = arg0;
}
uretprobe:POST /@wr[tid]/ {
  $list = *(uint64 *)(@wr[tid] + 16);
  @posts[pid, @queue[tid], *(uint32 *)(@wr[tid] + 28)] = count();
  @bytes[pid, @queue[tid]] = sum(*(uint32 *)($list + 8));
  @failed[pid, @queue[tid]] = sum(retval != 0);
  delete(@wr[tid]);
  delete(@queue[tid]);
}
uprobe:POLL { @polled[tid] = arg2; }
uretprobe:POLL /@polled[tid]/ {
  if ((int32)retval > 0) { @completions[pid, *(uint32 *)(@polled[tid] + 28)] = count(); }
  delete(@polled[tid]);
}
BEGIN { printf("attached\\n"); }
"""
"""Of the first work request and the first completion only."""
