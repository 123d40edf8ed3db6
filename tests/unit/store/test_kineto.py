"""Traces of torch.profiler, in the shape that PyTorch 2 writes: work is of the step that called for it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from otelgpu.cli.commands import cli
from otelgpu.store import Store, open_inputs

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "training_job.capture"
BASE_NS = 1_700_000_000_000_000_000


class Trace:
    """A rank's. Times and lengths are milliseconds."""

    def __init__(self, rank: int | None = 0) -> None:
        self.events: list[dict[str, Any]] = []
        self.document: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": 2,
                "pg_count": 1,
                "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}],
                "nccl_version": "2.27.5",
            },
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": self.events,
            "traceName": "trace.json",
        }
        if rank is None:
            del self.document["distributedInfo"]

    def add(self, cat: str, name: str, at: float, length: float, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 7,
                "tid": 7,
                "ts": at * 1e3,
                "dur": length * 1e3,
                "args": args,
            }
        )

    def step(self, number: int, at: float, length: float) -> None:
        self.add("user_annotation", f"ProfilerStep#{number}", at, length, **{"External id": number})
        self.add("gpu_user_annotation", f"ProfilerStep#{number}", at + 2, length)

    def kernel(self, called: float, at: float, length: float, name: str = "gemm", **args: Any) -> None:
        correlation = len(self.events) + 1
        self.add("cuda_runtime", "cudaLaunchKernel", called, 0.01, cbid=211, correlation=correlation)
        self.add("kernel", name, at, length, device=0, stream=7, correlation=correlation, **args)

    def all_reduce(self, called: float, at: float, length: float) -> None:
        args = {
            "Collective name": "allreduce",
            "In msg nelems": 1024,
            "Out msg nelems": 1024,
            "Group size": 2,
            "dtype": "BFloat16",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]",
        }
        self.kernel(
            called,
            at,
            length,
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            **args,
        )

    def written(self, folder: Path, name: str = "") -> str:
        path = folder / (name or f"gpu-7_123.{len(list(folder.iterdir()))}.pt.trace.json")
        path.write_text(json.dumps(self.document, indent=2))
        return str(path)


def select(store: Store, query: str) -> list[tuple[Any, ...]]:
    return store.connection.sql(query).fetchall()


def test_work_is_of_the_step_that_called_for_it(tmp_path: Path) -> None:
    trace = Trace()
    trace.step(3, 0, 10)
    trace.step(4, 10, 10)
    trace.kernel(called=9, at=12, length=3)
    with open_inputs([trace.written(tmp_path)]) as store:
        assert select(store, "SELECT step, host, round(t1 - t0, 6) FROM ops WHERE kind = 'compute'") == [
            (3, "gpu-7", 0.003)
        ]
        ((begin,),) = select(store, "SELECT t0 FROM ops WHERE kind = 'compute'")
        assert begin == pytest.approx(BASE_NS * 1e-9 + 0.012, abs=1e-6)


def test_time_in_which_the_device_is_idle_is_the_ranks_own(tmp_path: Path) -> None:
    """10 ms: kernels in 3 (two overlap), a collective waits in 2, the loader works in 3 of which 1 is hidden."""
    trace = Trace()
    trace.step(0, 0, 10)
    trace.kernel(0.5, 1, 2)
    trace.kernel(0.6, 2, 2)
    trace.all_reduce(0.7, 4, 2)
    trace.add("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 5, 3)
    with open_inputs([trace.written(tmp_path)]) as store:
        own = dict(select(store, "SELECT kind, round(sum(t1 - t0), 6) FROM ops GROUP BY kind"))
        assert own == {"step": 0.010, "compute": 0.004, "coll": 0.002, "input": 0.002, "host": 0.003}


def test_a_step_is_named_for_what_the_program_says_that_it_does_in_it(tmp_path: Path) -> None:
    """By annotations of the program, of which the first counts; an operator's name says nothing of that."""
    trace = Trace()
    for number in range(4):
        trace.step(number, 100 * number, 90)
    trace.add("user_annotation", "evaluate", 150, 20)
    trace.add("user_annotation", "Trainer.save_checkpoint", 110, 20)
    trace.add("user_annotation", "[pl][profile]validation_step", 210, 20)
    trace.add("user_annotation", "evaluate", 95, 3)  # of no step
    trace.add("cpu_op", "CheckpointFunction", 310, 20)
    with open_inputs([trace.written(tmp_path)]) as store:
        assert select(store, "SELECT step, name FROM ops WHERE kind = 'step' ORDER BY step") == [
            (0, "ProfilerStep"),
            (1, "checkpoint"),
            (2, "evaluation"),
            (3, "ProfilerStep"),
        ]


def test_a_collective_has_the_same_number_on_all_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = Trace(rank)
        for step in (5, 6):
            trace.step(step, step * 10, 10)
            for call in range(3):
                trace.all_reduce(step * 10 + call, step * 10 + call + 0.2 + rank * 0.1, 0.3)
        trace.written(tmp_path)
    with open_inputs([str(tmp_path)]) as store:
        calls = select(
            store,
            "SELECT grp, seq, count(DISTINCT rank), count(*), any_value(bytes), any_value(n), any_value(name)"
            " FROM ops WHERE kind = 'coll' GROUP BY grp, seq",
        )
        assert len(calls) == 6
        assert {(group, *others) for group, _, *others in calls} == {
            ("0 of rank 0", 2, 2, 2048, 2, "allreduce")
        }


def test_all_to_all_is_a_collective_though_its_kernel_sends_and_receives(tmp_path: Path) -> None:
    trace = Trace()
    trace.step(0, 0, 10)
    for name in ("all_to_allv", "send", ""):
        trace.kernel(
            1, 2, 3, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", **{"Collective name": name}
        )
    with open_inputs([trace.written(tmp_path)]) as store:
        kinds = select(
            store, "SELECT kind, count(*) FROM ops WHERE kind IN ('coll', 'p2p') GROUP BY ALL ORDER BY ALL"
        )
        assert kinds == [("coll", 1), ("p2p", 2)]


def test_a_rank_of_a_pipeline_has_its_stage_for_a_role(tmp_path: Path) -> None:
    for rank, groups in ((2, [{"pg_name": "4", "pg_desc": "mesh_pp", "ranks": [0, 2]}]), (3, {"old": True})):
        trace = Trace(rank)
        trace.document["distributedInfo"]["pg_config"] = groups
        trace.step(0, 0, 10)
        trace.written(tmp_path)
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT rank, role, lane FROM ops ORDER BY rank") == [
            (2, "stage 1", "pipeline of rank 0"),
            (3, "", ""),
        ]


def test_compressed_traces_and_copies_of_one_are_read_once(tmp_path: Path) -> None:
    trace = Trace()
    trace.step(0, 0, 10)
    plain = Path(trace.written(tmp_path))
    (tmp_path / "copy.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT count(*) FROM ops") == [(1,)]
        assert store.rejected == {"files_repeated": 1}
        assert store.limits == [
            "no device time in the traces of rank 0: computing, copies and collectives are not known"
        ]


def test_the_rank_may_be_in_the_files_name_and_must_be_somewhere(tmp_path: Path) -> None:
    trace = Trace(rank=None)
    trace.step(0, 0, 10)
    trace.written(tmp_path, "rank-12.json")
    trace.document["traceName"] = "another"
    trace.written(tmp_path, "worker.json")
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT rank FROM ops") == [(12,)]
        assert store.rejected == {"files_without_rank": 1}


def test_events_that_cannot_be_read_cost_no_others(tmp_path: Path) -> None:
    trace = Trace()
    trace.step(0, 0, 10)
    trace.kernel(1, 2, 3)
    trace.kernel(1, 2, 3, **{"Group size": -1})
    trace.events += [{"ph": "X", "cat": "kernel", "ts": "soon"}, 17]  # type: ignore[list-item]
    with open_inputs([trace.written(tmp_path)]) as store:
        assert select(store, "SELECT count(*) FROM ops WHERE kind = 'compute'") == [(1,)]
        assert store.rejected == {"events_unreadable": 3}


def test_of_a_trace_that_otelgpu_wrote_the_steps_of_one_rank_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.pt.trace.json"
    done = CliRunner().invoke(cli, ["replay", "--quiet", str(GOLDEN), "-o", str(path)])
    assert done.exit_code == 0, done.output
    with open_inputs([str(path)]) as store:
        assert store.rejected == {"files_of_several_ranks": 1}  # it recorded three
    document = json.loads(path.read_text())
    document["traceEvents"] = [
        event for event in document["traceEvents"] if event["pid"] != 501 and event["pid"] != 502
    ]
    path.write_text(json.dumps(document))
    with open_inputs([str(path)]) as store:
        assert select(store, "SELECT kind, step, rank FROM ops ORDER BY ALL") == [
            ("step", 6, 0),
            ("step", 7, 0),
        ]


def on_cpu(rank: int = 0) -> Trace:
    """A trace of a job without devices, as PyTorch 1.13 to 2.9 write it, of one step of 20 ms."""
    trace = Trace(rank)
    trace.document["deviceProperties"] = []
    trace.document["distributedInfo"]["backend"] = "gloo"
    trace.step(3, 0, 20)
    trace.add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 4)
    trace.add("cpu_op", "aten::randn", 3, 1)  # the data loader's
    trace.add("cpu_op", "aten::linear", 5, 3)
    trace.add("cpu_op", "aten::addmm", 5, 2)  # within it
    trace.add("cpu_op", "c10d::allreduce_", 9, 1)
    trace.add("user_annotation", "gloo:all_reduce", 10, 6)
    trace.events[-1]["tid"] = 8
    return trace


def test_without_devices_the_operators_are_the_work_and_gloo_is_the_communication(tmp_path: Path) -> None:
    with open_inputs([on_cpu().written(tmp_path)]) as store:
        found = select(store, "SELECT kind, name, step, round(1e3 * (t1 - t0), 3) FROM ops ORDER BY kind")
    assert found == [
        ("coll", "gloo:all_reduce", 3, 6),
        ("compute", "aten::linear", 3, 3),
        ("host", "device idle", 3, 7),  # 20 less 4 for the batch, 3 and 6
        ("input", "data loader", 3, 4),
        ("step", "ProfilerStep", 3, 20),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"deviceProperties": [{"id": 0}]},
        {"distributedInfo": {"backend": "nccl", "rank": 0}},
        {"distributedInfo": {"backend": "cpu:gloo,cuda:nccl", "rank": 0}},
    ],
)
def test_of_a_job_with_devices_operators_are_no_computing(tmp_path: Path, change: dict[str, Any]) -> None:
    """They only queue it, whatever its trace lacks."""
    trace = on_cpu()
    trace.document |= change
    with open_inputs([trace.written(tmp_path)]) as store:
        assert select(store, "SELECT DISTINCT kind FROM ops ORDER BY kind") == [("input",), ("step",)]
        assert any("no device time" in limit for limit in store.limits)
