"""The programs of the gallery with their labels: what has to be said of each first, or that nothing is to be said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class Case(Struct, frozen=True, kw_only=True):
    """What a program has to be said of.

    ``cause``: "" of a healthy one. ``says``: what the sentence has to have; ``quota``: CPUs of its control group;
    ``device``: its calls of CUDA are recorded.
    """

    cause: str
    says: tuple[str, ...] = ()
    quota: float = 0.0
    device: bool = False


CASES: Final[Mapping[str, Case]] = {
    "synchronous_write": Case(
        cause="file_write",
        says=("60.0 MB to checkpoint.bin", "every 5th of 40 steps", "vfs_write", "synchronous_write"),
    ),
    "write_without_pauses": Case(
        cause="file_write", says=("60.0 MB to checkpoint.bin", "write_without_pauses")
    ),
    "many_names": Case(cause="file_write", says=("checkpoint-*.bin", "every 5th of 40 steps")),
    "fsync": Case(cause="file_sync", says=("journal.bin", "every 5th of 40 steps")),
    "slow_read": Case(cause="file_read", says=("60.0 MB of shard.bin", "every 5th of 40 steps")),
    "slow_pipe": Case(cause="input", says=("slow_pipe", "pipe_read")),
    "slow_worker": Case(cause="input", says=("slow_worker",)),
    "slow_thread": Case(cause="input", says=("slow_thread", "_produce")),
    "lock": Case(cause="lock", says=("lock", "evict")),
    "gil": Case(cause="gil", says=("gil", "tokenize")),
    "cpu_contention": Case(cause="cpu_contention"),
    "cgroup_throttling": Case(cause="cgroup_throttling", quota=0.15),
    "page_faults": Case(cause="page_faults", says=("page_faults",)),
    "cold_mapping": Case(cause="page_faults", says=("cold_mapping",)),
    "garbage_collection": Case(cause="garbage_collection", says=("garbage_collection",)),
    "device_copy": Case(cause="device_copy", says=("device_copy",), device=True),
    "sleep": Case(cause="sleep", says=("every 5th of",)),
    "subprocess_wait": Case(cause="subprocess", says=("subprocess_wait", "every 5th of 40 steps")),
    "subprocess_output": Case(cause="subprocess", says=("subprocess_output", "every 5th of 40 steps")),
    "steady_compute": Case(cause=""),
    "compute_and_sleep": Case(cause=""),
    "server_at_rest": Case(cause=""),
    "steady_reads": Case(cause=""),
    "small_logs": Case(cause=""),
    "write_in_thread": Case(cause=""),
    "uneven_compute": Case(cause=""),
}
