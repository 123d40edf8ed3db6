"""The tables of collected operations: columns, DuckDB types, units and what each column says.

What reads files fills them, what makes verdicts queries them, and docs/reference/tables.md is written from them. Every
column has a value in every row: a missing one is the column's default, never NULL.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

STEP_UNKNOWN: Final = -1
SEQUENCE_UNKNOWN: Final = -1
RANK_OF_HOST: Final = -1
"""In ``evidence``: of the whole host."""

KINDS: Final = {
    "step": "a whole step of a rank, from one boundary to the next",
    "compute": "kernels that are none of the communication library: the device's own work",
    "copy": "copies between host and device, and memsets",
    "input": "the step's wait for its batch (data loader)",
    "file": "reads, writes and syncs of files",
    "host": "the program's own code and calls that only queue work",
    "coll": "a collective of a group: its time is the group's, not the rank's own",
    "p2p": "a send or receive: likewise",
}
"""The values of ``ops.kind``."""

CHECKPOINT: Final = "checkpoint"
EVALUATION: Final = "evaluation"
"""``ops.name`` of a ``step`` in which its rank did that beside training."""
CHECKPOINT_BYTES: Final = 8 << 20
"""Written to files in one step: logs and metrics are less, a model is more."""

OWN_KINDS: Final = ("compute", "copy", "input", "file", "host")
"""Kinds whose time is the rank's own."""


class Column(Struct, frozen=True, kw_only=True):
    """``default``: the SQL literal of a column that an input may lack; None: every input has to have it."""

    name: str
    type: str
    text: str
    unit: str = ""
    default: str | None = None

    @property
    def is_required(self) -> bool:
        """Whether a file without the column is no file of this table."""
        return self.default is None


OPS: Final = (
    Column(name="job", type="VARCHAR", default="''", text="The job or run."),
    Column(
        name="step",
        type="BIGINT",
        text="Number of the step, the same on every rank. −1: the input does not say; such a row is of no step.",
    ),
    Column(name="rank", type="INTEGER", text="Global rank, from 0."),
    Column(name="host", type="VARCHAR", default="''", text="The rank's host."),
    Column(name="role", type="VARCHAR", default="''", text="What its like do too: the pipeline stage."),
    Column(name="lane", type="VARCHAR", default="''", text="Which of those with the role: the replica."),
    Column(name="unit", type="BIGINT", default="0", text="Microbatch in the step, from 0."),
    Column(name="kind", type="VARCHAR", text="What the time is of: see below."),
    Column(
        name="name",
        type="VARCHAR",
        default="''",
        text="The operation: a kernel, a function, a collective. "
        f"Of a `step`: `{CHECKPOINT}` or `{EVALUATION}` where its rank did that in it.",
    ),
    Column(name="grp", type="VARCHAR", default="''", text="Of `coll` and `p2p`: the communicator."),
    Column(
        name="seq",
        type="BIGINT",
        default="-1",
        text="Number of the operation in its group, the same on all its members. −1: not known.",
    ),
    Column(name="n", type="INTEGER", default="0", text="Members of the group. 0: not known."),
    Column(name="t0", type="DOUBLE", unit="s", text="Start, by the clock of its host."),
    Column(
        name="t1",
        type="DOUBLE",
        unit="s",
        text="End, by the same clock. Of `coll` and `p2p` in a file, NULL or NaN: it had not ended; it is taken to the "
        "last time of the files, and is evidence `collective_pending`.",
    ),
    Column(name="bytes", type="BIGINT", default="0", unit="By", text="Bytes moved. 0: not known, or none."),
)
"""A row is one finished operation of one rank."""

COLLECTIVE_PENDING: Final = "collective_pending"

EVIDENCE: Final = (
    Column(name="job", type="VARCHAR", default="''", text="The job or run."),
    Column(name="rank", type="INTEGER", default="-1", text="Global rank. −1: of the whole host."),
    Column(name="host", type="VARCHAR", default="''", text="The host."),
    Column(name="t0", type="DOUBLE", unit="s", text="Since when, by the clock of the host."),
    Column(name="t1", type="DOUBLE", unit="s", text="Until when."),
    Column(
        name="name",
        type="VARCHAR",
        text=f"What was seen: `xid` (or SXid), `{COLLECTIVE_PENDING}`, a metric that grew, `otelgpu.probe`, "
        "`otelgpu.step.file.duration`, `otelgpu.step.cpu.throttled.duration` or `otelgpu.step.major_faults`.",
    ),
    Column(
        name="value",
        type="DOUBLE",
        default="0",
        text="Of `xid`: its number; of `collective_pending`: the collective's, as in `ops.seq`; of a metric: what it "
        "grew by; of page faults how many; of the others: seconds, in what a user's own probe is on, in files, or "
        "throttled.",
    ),
    Column(name="text", type="VARCHAR", default="''", text="In words."),
)
"""A row is one thing seen beside the operations: it supports a verdict, and makes none."""

_LINK: Final = "Trace id and span id in hexadecimal, with a hyphen between them."
STEP_SPANS: Final = (
    Column(name="job", type="VARCHAR", default="''", text="The job or run."),
    Column(name="rank", type="INTEGER", text="Global rank, from 0."),
    Column(name="step", type="BIGINT", text="Number of the step, as in `ops`."),
    Column(name="link", type="VARCHAR", text=_LINK),
)
"""A row is the span of a rank's step, where the input has spans: what verdicts link to."""

_KEYS: Final = {column.name: column for column in OPS}
STEP_SUMS: Final = (
    *(_KEYS[name] for name in ("job", "step", "rank", "host", "role", "lane", "kind")),
    Column(name="operations", type="BIGINT", text="How many there are."),
    Column(name="seconds", type="DOUBLE", unit="s", text="What they take together."),
    Column(name="begin_s", type="DOUBLE", unit="s", text="The first `t0`."),
    Column(name="end_s", type="DOUBLE", unit="s", text="The last `t1`."),
    Column(name="moved", type="DOUBLE", unit="By", text="The sum of `bytes`."),
    Column(name="last_unit", type="BIGINT", text="The largest `unit`."),
)
"""A row is all operations of one kind of a rank in a step: derived from ``ops``, by :mod:`otelgpu.store.sums`."""

_PROCESS: Final = (
    Column(name="host", type="VARCHAR", default="''", text="The host of the process."),
    Column(name="service", type="VARCHAR", default="''", text="`service.name`, which names the job."),
    Column(
        name="instance",
        type="VARCHAR",
        default="''",
        text="`service.instance.id`, else the number of the process: one of the host's processes.",
    ),
    Column(name="job_id", type="VARCHAR", default="''", text="The job, as its launcher says."),
    Column(
        name="job_rank",
        type="BIGINT",
        default="-1",
        text="Global rank, as its launcher says. −1: it does not.",
    ),
    Column(name="job_size", type="BIGINT", default="-1", text="Ranks of the job, likewise."),
)
STEPS: Final = (
    *_PROCESS,
    Column(name="span", type="UBIGINT", text="Identity of the span, as a number."),
    Column(name="number", type="BIGINT", text="The step, as its process counts them."),
    Column(name="t0", type="DOUBLE", unit="s", text="Start, by the clock of the host."),
    Column(name="t1", type="DOUBLE", unit="s", text="End."),
    Column(name="input_s", type="DOUBLE", default="0", unit="s", text="Of it, the data-loader stall."),
    Column(name="file_s", type="DOUBLE", default="0", unit="s", text="Of it, slow files."),
    Column(name="host_s", type="DOUBLE", default="0", unit="s", text="Of it, host overhead."),
    Column(
        name="compute_s",
        type="DOUBLE",
        default="NULL",
        unit="s",
        text="What the device computed. NULL or NaN: device time was not measured.",
    ),
    Column(name="copy_s", type="DOUBLE", default="NULL", unit="s", text="What it copied, likewise."),
    Column(
        name="slowest_file",
        type="VARCHAR",
        default="''",
        text="The file of the longest access, without its path.",
    ),
    Column(name="link", type="VARCHAR", default="''", text=_LINK),
    Column(
        name="throttled_s",
        type="DOUBLE",
        default="0",
        unit="s",
        text="In which the quota of CPU time was spent, of some 2 s until the step's end.",
    ),
    Column(
        name="major_faults", type="BIGINT", default="0", text="Page faults that waited for a disk, likewise."
    ),
    Column(
        name="written_bytes",
        type="BIGINT",
        default="0",
        unit="By",
        text=f"Written to files, by calls that took long. From {CHECKPOINT_BYTES >> 20} MiB on the step is one of a "
        "checkpoint.",
    ),
)
"""A row is one training step of one process."""

CALLS: Final = (
    *_PROCESS,
    Column(name="span", type="UBIGINT", text="Identity of the span, as a number."),
    Column(name="trace", type="UBIGINT", text="Of the collective: the two halves of its trace id, xor."),
    Column(name="operation", type="VARCHAR", text="AllReduce, Send, …"),
    Column(name="hash", type="VARCHAR", default="''", text="The communicator. Empty: not known."),
    Column(name="rank", type="BIGINT", text="Rank in the communicator."),
    Column(name="ranks", type="BIGINT", default="0", text="Ranks of it. 0: not known."),
    Column(name="peer", type="BIGINT", default="-1", text="Of Send and Recv: the other rank."),
    Column(name="number", type="BIGINT", default="-1", text="`nccl.sequence`. −1: not known."),
    Column(name="t0", type="DOUBLE", unit="s", text="When it was called, by the clock of the host."),
    Column(
        name="device_s",
        type="DOUBLE",
        default="NULL",
        unit="s",
        text="Time on the device. NULL or NaN: not measured.",
    ),
    Column(name="bytes", type="BIGINT", default="0", unit="By", text="Size of the message."),
)
"""A row is one call of a collective, a send or a receive."""

WAITS: Final = (
    Column(name="call", type="UBIGINT", text="`span` of the call."),
    Column(name="ended", type="DOUBLE", unit="s", text="When the wait for it ended."),
)
"""A row is one wait of the host for a call."""

PROBES: Final = (
    *_PROCESS,
    Column(name="span", type="UBIGINT", text="Identity of the span, as a number."),
    Column(name="t0", type="DOUBLE", unit="s", text="Start, by the clock of the host."),
    Column(name="t1", type="DOUBLE", unit="s", text="End."),
    Column(name="name", type="VARCHAR", text="`otelgpu.probe.name`."),
    Column(name="seconds", type="DOUBLE", unit="s", text="In all hits that are folded into it."),
)
"""A row is a hit of a user's own probe: a garbage collection, a checkpoint."""

OF_HOSTS: Final = {"steps": STEPS, "calls": CALLS, "waits": WAITS, "probes": PROBES}
"""What an agent writes: ranks and steps of them are found when all hosts' are read."""

TABLES: Final = {"ops": OPS, "evidence": EVIDENCE, "step_spans": STEP_SPANS}
"""What is read, and kept."""
DERIVED: Final = {"step_sums": STEP_SUMS}
