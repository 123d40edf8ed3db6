"""Which rank of which job a process is, by what its launcher put into its environment. Pure.

In: the variables :data:`VARIABLES` of a process; what its ancestors were started with, where none of these names the
job. Out: resource attributes ``otelgpu.job.*``. They are the process's own words: whoever compares ranks must expect
that two say that they are the same.

Launchers are asked in the order of :data:`LAUNCHERS`, the innermost first: torchrun under Slurm starts the ranks that
count, and Slurm one process a node. Sources: torchrun's "Environment Variables"
(https://docs.pytorch.org/docs/stable/elastic/run.html), srun(1), mpirun(1) of Open MPI, MPICH's Hydra (4.0.2,
as it runs). Ray Train and Kubeflow's PyTorchJob set those of torch.distributed.

Example: ``{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_JOB_ID": "17"}`` → rank 5 of 8, local rank 1, of
job 17.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from otelgpu.model.job import JOB_ID, JOB_LOCAL_RANK, JOB_RANK, JOB_SIZE

MOST_RANKS: Final = 1 << 20
"""A number that is as large is none of a rank."""

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+@-]{0,127}")
_NUMBER: Final = re.compile(r"\d{1,7}")
_ADDRESS: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\]-]{0,120}:[0-9]{1,5}")


class Launcher(Struct, frozen=True):
    """The variables in which one says what it started."""

    rank: str
    size: str
    local_rank: str


HYDRA: Final = Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")

LAUNCHERS: Final = (
    Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    HYDRA,
    Launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)

_NO_IDS: Final = frozenset(("none", ""))
"""torchrun's default, which all jobs of the world have."""

ID_VARIABLES: Final = (
    "SLURM_JOB_ID",
    "TORCHELASTIC_RUN_ID",
    "RAY_JOB_ID",
    "JOBSET_NAME",
    "PBS_JOBID",
    "LSB_JOBID",
    "PMIX_NAMESPACE",
)
"""The batch system's own id first: it is the same on all hosts, and another at the next submission. Last Open MPI's
mpirun, for what it started (PMIx)."""

RENDEZVOUS: Final = ("MASTER_ADDR", "MASTER_PORT")
"""Where torch.distributed's ranks meet: the same on all of them, and no other job's at the same time."""

HYDRA_PROXY: Final = "hydra_pmi_proxy"
"""What Hydra's ``mpiexec`` runs on each host, and this starts the ranks. Its ``--control-port HOST:PORT`` is where it
reaches ``mpiexec``: the same on all hosts, and no other job's at the same time. ``--pgid``: 0, and of the ranks that a
job has started with ``MPI_Comm_spawn`` another."""

MOST_WORDS: Final = 256
"""Of the proxy's command that are looked at; it has some twenty."""

VARIABLES: Final = frozenset(
    name for launcher in LAUNCHERS for name in (launcher.rank, launcher.size, launcher.local_rank)
) | frozenset((*ID_VARIABLES, *RENDEZVOUS))
"""All that are looked at."""


def job_attributes(
    environ: Mapping[str, str], ancestors: Iterable[Sequence[str]] = ()
) -> dict[str, str | int]:
    """What is known of the job; nothing where no launcher says a rank and how many there are, or not with sense.

    ``ancestors``: the commands of its parent, of its parent's parent and so on; asked for only where they are needed.
    """
    for launcher in LAUNCHERS:
        rank, size = _number(environ, launcher.rank), _number(environ, launcher.size)
        if rank is None or size is None or rank >= size:
            continue
        found: dict[str, str | int] = {JOB_RANK: rank, JOB_SIZE: size}
        local_rank = _number(environ, launcher.local_rank)
        if local_rank is not None and local_rank < size:
            found[JOB_LOCAL_RANK] = local_rank
        job = _id(environ)
        if not job and launcher is HYDRA:
            job = next(filter(None, map(_hydra_id, ancestors)), "")
        if job:
            found[JOB_ID] = job
        return found
    return {}


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    number = int(text) if _NUMBER.fullmatch(text) and text.isascii() else MOST_RANKS
    return number if number < MOST_RANKS else None


def _id(environ: Mapping[str, str]) -> str:
    for name in ID_VARIABLES:
        text = environ.get(name, "")
        if text.lower() not in _NO_IDS and _ID.fullmatch(text):
            return text
    address = ":".join(environ.get(name, "") for name in RENDEZVOUS)
    return address if _ADDRESS.fullmatch(address) else ""


def _hydra_id(command: Sequence[str]) -> str:
    """``hydra_pmi_proxy --control-port node-3:35267 … --pgid 0 …`` → ``node-3:35267/0``; of other commands nothing."""
    if not command or command[0].rpartition("/")[2] != HYDRA_PROXY:
        return ""
    words = command[:MOST_WORDS]
    said = dict(pairwise(words))
    address, group = said.get("--control-port", ""), _number(said, "--pgid")
    return f"{address}/{group}" if _ADDRESS.fullmatch(address) and group is not None else ""
