"""The programs of the gallery with their labels: what has to be said of each first, or that nothing is to be said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class Case(Struct, frozen=True, kw_only=True):
    """What a program has to be said of.

    ``cause``: "" of a healthy one. ``says``: what the sentence has to have; ``also``: a cause that has to be named
    too. ``quota``: CPUs of its control group, ``read_mb_per_s``: what that may read of a disk. ``device``: its calls of
    CUDA are recorded; ``native``: the file of a program that is no Python. ``live``: it is run in tests, not only
    looked at as it was recorded. ``torch``: it needs PyTorch.
    """

    cause: str
    says: tuple[str, ...] = ()
    quota: float = 0.0
    device: bool = False
    also: str = ""
    native: str = ""
    read_mb_per_s: int = 0
    live: bool = False
    torch: bool = False


CASES: Final[Mapping[str, Case]] = {
    "synchronous_write": Case(
        cause="file_write",
        says=("60.0 MB to checkpoint.bin", "every 5th of 40 steps", "vfs_write", "synchronous_write"),
    ),
    "write_without_pauses": Case(
        cause="file_write", says=("60.0 MB to checkpoint.bin", "write_without_pauses")
    ),
    "many_names": Case(cause="file_write", says=("checkpoint-*.bin", "every 5th of 40 steps")),
    "fsync": Case(cause="file_sync", says=("journal.bin", "every 5th of 40 steps"), live=True),
    "slow_read": Case(cause="file_read", says=("60.0 MB of shard.bin", "every 5th of 40 steps")),
    "slow_pipe": Case(cause="input", says=("slow_pipe", "pipe_read")),
    "slow_worker": Case(cause="input", says=("slow_worker",), live=True),
    "slow_thread": Case(cause="input", says=("slow_thread", "_produce")),
    "lock": Case(cause="lock", says=("lock", "evict"), live=True),
    "gil": Case(cause="gil", says=("gil", "tokenize"), live=True),
    "cpu_contention": Case(cause="cpu_contention"),
    "cgroup_throttling": Case(cause="cgroup_throttling", quota=0.15, live=True),
    "page_faults": Case(cause="page_faults", says=("page_faults",)),
    "cold_mapping": Case(cause="page_faults", says=("cold_mapping",), live=True),
    "garbage_collection": Case(cause="garbage_collection", says=("garbage_collection",)),
    "device_copy": Case(cause="device_copy", says=("device_copy",), device=True),
    "sleep": Case(cause="sleep", says=("every 5th of",)),
    "subprocess_wait": Case(cause="subprocess", says=("subprocess_wait", "every 5th of 40 steps")),
    "subprocess_output": Case(cause="subprocess", says=("subprocess_output", "every 5th of 40 steps")),
    "remote_read": Case(cause="file_read", says=("of shard.bin", "every 5th of 40 steps", "fuse_")),
    "throttled_read": Case(cause="file_read", says=("20.0 MB of shard.bin",), read_mb_per_s=100),
    "read_in_parts": Case(cause="file_read", says=("of shard.bin", "every 5th of 40 steps")),
    "extension": Case(cause="compile", says=("extension",)),
    "just_in_time": Case(cause="compile", says=("just_in_time",)),
    "device_free": Case(cause="device_memory", says=("evaluate",), device=True, live=True),
    "device_sync": Case(cause="device_sync", says=("log_loss",), device=True),
    "native_write": Case(
        cause="file_write",
        says=("62.9 MB to state.bin", "save_state", "every 5th of 40 steps"),
        native="native.c",
        live=True,
    ),
    "native_lock": Case(cause="lock", says=("update_index", "compact"), native="native.c"),
    "sleep_and_write": Case(cause="sleep", also="file_write"),
    "program_and_collection": Case(cause="subprocess", also="garbage_collection"),
    "lock_and_program": Case(cause="lock", also="subprocess"),
    "native_healthy": Case(cause="", native="native.c"),
    "steady_compute": Case(cause=""),
    "compute_and_sleep": Case(cause=""),
    "server_at_rest": Case(cause=""),
    "steady_reads": Case(cause=""),
    "small_logs": Case(cause=""),
    "write_in_thread": Case(cause="", live=True),
    "uneven_compute": Case(cause=""),
    # Written when the rules were done.
    "async_journal": Case(cause="inconclusive", says=("at async_journal.<locals>.note",)),
    "pickled_batches": Case(cause="file_read", says=("part-*.pkl", "batches", "every 9th of 54 steps")),
    "futures": Case(cause="input", says=("tokenize",)),
    "database": Case(cause="file_sync", says=("metrics.db", "every 12th of 120 steps")),
    "connection": Case(cause="input", says=("connection",)),
    "native_read": Case(
        cause="file_read", says=("tokens.bin", "next_shard", "every 6th of 48 steps"), native="native.cpp"
    ),
    "async_server": Case(cause=""),
    # The second such set. The labels of mapped_sync and socket_batches were file_sync and input at first: making the
    # pages costs more than syncing them, and a peer on a socket is named as one.
    "mapped_sync": Case(cause="page_faults", says=("mapped_sync",), also="file_sync"),
    "archive": Case(cause="file_write", says=("state.npz", "every 6th of")),
    "socket_batches": Case(cause="network", says=("socket_batches", "every 8th of")),
    "logging_lock": Case(cause="lock", says=("_Shipping.emit", "every 10th of 60 steps")),
    "collected": Case(cause="garbage_collection", says=("collected", "every 9th of 54 steps")),
    "shell": Case(cause="subprocess", says=("shell", "every 6th of")),
    "fresh_memory": Case(cause="page_faults", says=("fresh_memory",)),
    "made_ahead": Case(cause=""),
    # Real PyTorch.
    "torch_loader": Case(cause="file_read", says=("33.6 MB of sample-*.bin", "__getitem__"), torch=True),
    "torch_checkpoint": Case(
        cause="file_write", says=("checkpoint.pt", "torch_checkpoint", "every 6th of 48 steps"), torch=True
    ),
    "torch_healthy": Case(cause="", torch=True),
}
