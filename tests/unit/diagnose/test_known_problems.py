"""Known problems: rules that are installed, what shows them, and files of rules that cannot be used."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.cli.commands import cli
from otelgpu.cli.rule_files import known_rules
from otelgpu.diagnose.observation import Observation
from otelgpu.diagnose.rules.catalogue import meanings, names
from otelgpu.diagnose.rules.matching import in_evidence, in_log, near, of_word
from otelgpu.diagnose.rules.rule import Rule, RuleFileError, read_rules, together
from otelgpu.export.parquet.rows import XID
from otelgpu.store.readers.otlp_counters import TROUBLE
from tests.rig.examples import examples

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "training_job.capture"
RULES = known_rules()

LOGS = {
    "[ 88.1] NVRM: Xid (PCI:0000:cb:00): 79, pid=1234, name=python, GPU has fallen off the bus.": ["xid-79"],
    "NVRM: Xid (PCI:0000:07:00): 119, pid=77, Timeout waiting for RPC from GSP": ["xid-119-120"],
    "NVRM: Xid (PCI:0000:07:00): 179, pid=77": [],
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 19084, Fatal, Link 29": ["sxid"],
    "torch.OutOfMemoryError: CUDA out of memory. If reserved but unallocated memory is large"
    " try setting PYTORCH_ALLOC_CONF=expandable_segments:True": [
        "cuda-out-of-memory",
        "allocator-fragmentation",
    ],
    "RuntimeError: CUDA error: device-side assert triggered": ["cuda-device-assert"],
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE": [
        "nccl-watchdog-timeout"
    ],
    "node-2:91:104 [0] transport/net_ib.cc:2117 NCCL WARN NET/IB: Got completion from peer 10.0.0.7<47583> with "
    "status=12 opcode=0 len=0 vendor err 129": ["nccl-retry-exceeded"],
    "NCCL WARN Call to ibv_modify_qp failed with error Invalid argument": ["nccl-gid"],
    "NCCL INFO NET/IB : No device found.": ["nccl-no-rdma"],
    "NCCL INFO P2P is disabled between connected GPUs 1 and 0": ["nccl-p2p-disabled"],
    "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)": [
        "nccl-shared-memory"
    ],
    "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory.": ["nccl-shared-memory", "loader-bus-error"],
    "Memory cgroup out of memory: Killed process 4242 (python)": ["oom-killer"],
    "  exitcode  : -9 (pid: 912)": ["killed-by-signal"],
    "pci 0000:17:00.0: 8.000 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x4 link": [
        "pcie-slower-than-it-could"
    ],
    "step 12 loss 2.31 tokens/s 31200": [],
    "epoch 79, batch 13: done": [],
}


def row(name: str, value: float, text: str = "", *, host: str) -> Observation:
    return Observation(rank=-1, host=host, begin_s=0, end_s=1, name=name, value=value, text=text)


def explain(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["diagnose", "explain", *arguments], input=given)


def test_rules_are_many_have_sources_and_name_evidence_that_there_is() -> None:
    assert len(RULES) >= 40
    assert all(rule.source.startswith("https://") for rule in RULES)
    seen = {sign.name for rule in RULES for sign in rule.evidence}
    assert seen <= {XID, "sxid", *TROUBLE}


def test_codes_of_rules_are_those_of_the_catalogue() -> None:
    known = {word.lower() for name in names() for each in meanings(name) for word in each.words}
    codes = {code.lower() for rule in RULES for code in rule.codes}
    assert codes - known == set()


@pytest.mark.parametrize("line", LOGS, ids=lambda line: line[:40])
def test_a_line_shows_the_problems_that_it_is_of(line: str) -> None:
    found = in_log(RULES, ["first", line, "last", line])
    assert sorted(match.rule.id for match in found) == sorted(LOGS[line])
    assert all((match.first_line, match.lines) == (2, 2) for match in found)
    assert all(match.text in line for match in found)


def test_of_a_line_only_what_is_looked_for_is_told(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("prompt=my secret CUDA out of memory. Tried key=hunter2\n")
    done = explain("--log", str(log))
    assert done.exit_code == 3
    assert f"{log}, line 1: CUDA out of memory" in done.stdout
    assert "secret" not in done.stdout and "hunter2" not in done.stdout
    (found,) = json.loads(explain("--log", str(log), "--json").stdout)["logs"][0]["problems"]
    assert (found["rule"]["id"], found["first_line"], found["text"]) == (
        "cuda-out-of-memory",
        1,
        "CUDA out of memory",
    )


def test_a_healthy_log_shows_nothing(tmp_path: Path) -> None:
    done = explain("--log", "-", given="step 1 loss 2.5\n" * 100)
    assert (done.exit_code, done.stdout) == (0, "standard input: no known problem\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["xid", "79"], "Xid 79 (GPU_HAS_FALLEN_OFF_THE_BUS)"),
        (["XID:48"], "[xid-48]"),
        (["cuda:700"], "cudaErrorIllegalAddress (700): an error of the CUDA runtime"),
        (["CUDA_ERROR_OUT_OF_MEMORY"], "[cuda-out-of-memory]"),
        (["cudamemcpyasync_ptsz"], "[pageable-copy]"),
        (["cuMemFree_v2"], "[allocation-synchronises]"),
        (["wc:12"], "retries_exceeded (12)"),
        (["nccl:8"], "[nccl-watchdog-timeout]"),
        (["xid", "13", "cudaFree"], "[allocation-synchronises]"),
    ],
    ids=str,
)
def test_codes_and_functions_are_explained(words: list[str], says: str) -> None:
    done = explain(*words)
    assert done.exit_code == 0, done.output
    assert says in done.stdout


def test_a_bare_number_is_all_that_it_may_be() -> None:
    said = explain("2").stdout
    assert all(
        name in said for name in ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "ncclSystemError")
    )


def test_what_is_not_known_is_said_with_what_is_like_it() -> None:
    done = explain("cudaErorIllegalAdress")
    assert done.exit_code == 1
    assert "cudaErrorIllegalAddress" in near("cudaErorIllegalAdress", names())


def test_evidence_shows_a_problem_where_it_reaches_the_bound() -> None:
    rows = [
        row(XID, 79, host="a"),
        row("rdma.port.retries", 900, host="a"),
        row("rdma.port.retries", 900, host="b"),
        row("rdma.port.retries", 200, host="b"),
        row("otelgpu.gpu.throttle.time", 5, "seconds … (sync_boost)", host="b"),
        row("otelgpu.gpu.throttle.time", 5, "seconds … (thermal)", host="c"),
    ]
    found = {each.rule: (each.hosts, each.count) for each in in_evidence(RULES, rows)}
    assert found == {
        "xid-79": (["a"], 1),
        "rdma-packet-loss": (["b"], 2),
        "thermal-throttling": (["c"], 1),
    }


def test_a_job_s_evidence_shows_them(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    lines = tmp_path / "job.jsonl"
    done = CliRunner().invoke(cli, ["replay", "--quiet", str(GOLDEN), "--export", f"file:{lines}"])
    assert done.exit_code == 0, done.output
    said = CliRunner().invoke(cli, ["diagnose", "ranks", str(lines)]).stdout
    assert "Known problem xid-79" in said
    (problem,) = json.loads(CliRunner().invoke(cli, ["diagnose", "ranks", str(lines), "--json"]).stdout)[
        "known"
    ]
    assert (problem["rule"], problem["ranks"], problem["count"]) == ("xid-79", [], 1)
    assert problem["change"]


def test_a_rule_of_one_s_own_is_in_the_place_of_the_installed_one(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "version: 1\nrules:\n- {id: xid-79, problem: Ours., why: w, change: [c], source: s, codes: [xid 79]}\n"
    )
    said = explain("xid", "79", "--rules", str(own)).stdout
    assert "Ours." in said and "no longer answers" not in said
    assert len(together(RULES, read_rules(own.read_text(), "own"))) == len(RULES)


GOOD = "id: a, problem: p, why: w, change: [c], source: s"


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (GOOD, "rule a has no sign"),
        (f"{GOOD}, logs: ['(']", "is no regular expression"),
        (f"{GOOD}, codes: [x], more: 1", "unknown field more.*of rule a"),
        (f"{GOOD}, codes: x", "Expected array, got str.*of rule a"),
        ("id: A b, problem: p", "regex"),
        ("id: a, problem: p", "missing required field"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(rule: str, says: str) -> None:
    with pytest.raises(RuleFileError, match=says):
        read_rules(f"version: 1\nrules:\n- {{{rule}}}\n", "mine.yaml")


@examples(50)
@given(st.text(max_size=300))
def test_no_file_of_rules_and_no_log_is_an_error_of_ours(text: str) -> None:
    try:
        read_rules(text, "x")
    except RuleFileError:
        pass
    assert all(isinstance(match.rule, Rule) for match in in_log(RULES, text.splitlines()))
    assert isinstance(of_word(RULES, [text]), list)


def test_expressions_do_not_take_long_on_hostile_lines() -> None:
    import time

    begin = time.process_time()
    for piece in (
        "Xid: 1",
        "DataLoader worker (pid",
        "Got completion status=",
        "PCIe Bus Error: ",
        "a:" * 10,
        "Signal 9 ",
    ):
        in_log(RULES, [piece * (1 << 16)])
    assert time.process_time() - begin < 2
    assert all(re.compile(each) for rule in RULES for each in rule.logs)
