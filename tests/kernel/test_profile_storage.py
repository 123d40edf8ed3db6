"""Slow calls on files, and requests to the block device below them, against what the program itself measured."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from otelgpu.model.files import CUT, DELETED, FileCall
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import OPERATION_SHIFT, SampleKind
from otelgpu.processes.charged_groups import charged_folder
from tests.kernel.observing import Watch, run_otelgpu
from tests.kernel.profiled import compiled, profiled

WRITE = 1  # enum req_op
REQUESTS, REQUEST_BYTES = 32, 64 << 10


def test_a_checkpoint_is_reported_with_its_file_its_bytes_and_its_time(
    watch: Callable[..., Watch], tmp_path: Path
) -> None:
    taken = profiled(watch, ProfileKind.FILE)
    taken.run([compiled(tmp_path), "saves", tmp_path / "checkpoint.bin"])
    samples = taken.of_kind(SampleKind.FILE)
    for call, said in ((FileCall.WRITE, "write"), (FileCall.SYNC, "fsync")):
        (found,) = samples[(samples["other"] & np.uint64(0xFF)) == call]
        ((size, ns),) = taken.known[said]
        assert int(found["size_bytes"]) == size
        assert 0 <= ns - int(found["value"]) < 0.05 * ns + 1_000_000
        assert taken.decoder.name_of(SampleKind.FILE, int(found["other"])) == str(tmp_path / "checkpoint.bin")
        assert len(taken.under(samples[samples["other"] == found["other"]], "saves")) == 1


def paths_of(watch: Callable[..., Watch], command: Sequence[str | Path]) -> set[str]:
    """Of the files that a program's slow calls were on."""
    taken = profiled(watch, ProfileKind.FILE)
    taken.run(command)
    samples = taken.of_kind(SampleKind.FILE)
    return {taken.decoder.name_of(SampleKind.FILE, int(each)) for each in samples["other"]}


@pytest.mark.parametrize(
    ("names", "is_whole"),
    [(["a"] * 200, True), (["directory"] * 50, True), (["d" * 200] * 4, False), (["d" * 12] * 200, False)],
    ids=["200 short", "50", "4 long", "200"],
)
def test_a_path_is_whole_or_said_to_be_cut(
    watch: Callable[..., Watch], tmp_path: Path, names: list[str], is_whole: bool
) -> None:
    program, folder = compiled(tmp_path), tmp_path.joinpath(*names)
    folder.mkdir(parents=True)
    (found,) = paths_of(watch, [program, "saves", folder / "checkpoint.bin"])
    if is_whole:
        assert found == str(folder / "checkpoint.bin")
        return
    mark, _, rest = found.partition("/")
    assert mark == CUT and str(folder / "checkpoint.bin").endswith(f"/{rest}")
    assert 600 < len(rest) < 900


def test_a_path_leads_over_what_is_mounted(watch: Callable[..., Watch], tmp_path: Path) -> None:
    program, inner, seen = compiled(tmp_path), tmp_path / "disk/inner", tmp_path / "seen/as"
    inner.mkdir(parents=True)
    seen.mkdir(parents=True)
    script = f"mount --bind {tmp_path}/disk {seen} && exec {program} saves {seen}/inner/checkpoint.bin"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    assert paths_of(watch, command) == {f"{seen}/inner/checkpoint.bin"}
    assert (inner / "checkpoint.bin").exists()


def test_a_path_begins_at_the_root_directory_of_the_process(
    watch: Callable[..., Watch], tmp_path: Path
) -> None:
    script = f'mount --bind / {tmp_path}/root && exec chroot {tmp_path}/root "$0" saves "$1"'
    (tmp_path / "root").mkdir()
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    program, path = compiled(tmp_path), tmp_path / "checkpoint.bin"
    assert paths_of(watch, [*command, program, path]) == {str(path)}


def test_a_file_that_was_deleted_is_said_to_be(watch: Callable[..., Watch], tmp_path: Path) -> None:
    path = tmp_path / "gone.bin"
    script = f'exec 3>{path}; rm {path}; exec "$0" saves /proc/self/fd/3'
    found = paths_of(watch, ["sh", "-c", script, compiled(tmp_path)])
    assert found == {f"{path}{DELETED}"} and not path.exists()


def test_memory_that_has_a_name_has_no_directory(watch: Callable[..., Watch], tmp_path: Path) -> None:
    number = os.memfd_create("scratch", 0)
    try:
        command = [compiled(tmp_path), "saves", Path(f"/proc/{os.getpid()}/fd/{number}")]
        assert paths_of(watch, command) == {"memfd:scratch"}
    finally:
        os.close(number)


def test_calls_that_are_quicker_than_asked_for_are_not_reported(
    watch: Callable[..., Watch], tmp_path: Path
) -> None:
    taken = profiled(watch, ProfileKind.FILE, file_slow_ms=60_000)
    taken.run([compiled(tmp_path), "saves", tmp_path / "checkpoint.bin"])
    assert taken.known["fsync"]
    assert not len(taken.samples)


def test_each_request_is_reported_with_its_device_its_bytes_and_its_time(
    watch: Callable[..., Watch], tmp_path: Path
) -> None:
    number = os.stat(tmp_path).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        pytest.skip(f"needs a block device below {tmp_path}: device {os.major(number)} has none")
    if (device / "partition").exists():
        device = device.resolve().parent
    path = tmp_path / "data.bin"
    with path.open("wb") as file:
        file.write(bytes(REQUESTS * REQUEST_BYTES))
        os.fsync(file.fileno())
    taken = profiled(watch, ProfileKind.BLOCK)
    taken.run([compiled(tmp_path), "direct", path])
    samples = taken.under(taken.of_kind(SampleKind.BLOCK), "writes_through")
    found = samples[(samples["other"] >> np.uint64(OPERATION_SHIFT)) == WRITE]
    data = found[found["size_bytes"] == REQUEST_BYTES]
    assert len(data) == REQUESTS
    ((count, ns),) = taken.known["writes_through"]
    assert count == REQUESTS and 0 < int(data["value"].sum()) < ns
    names = {taken.decoder.name_of(SampleKind.BLOCK, int(each)) for each in found["other"]}
    assert names == {device.resolve().name}
    loaded = next(each for each in taken.watching.source._draining if each.family == "profile")
    assert loaded.map("block_requests").list_keys() == []


def test_who_made_pages_dirty_is_a_candidate_for_what_the_kernel_wrote_back(tmp_path: Path) -> None:
    """A file of 48 MiB that a program writes without waiting, and ``sync``, which has the kernel write all."""
    if charged_folder(os.getpid()) is not None:
        pytest.skip("needs a kernel that charges no control group for what it writes back: this one does")
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True)
    if kind.stdout.strip() in ("tmpfs", "ramfs"):
        pytest.skip(f"needs a folder on a disk: {tmp_path} is memory, which nobody writes back")
    script = 'echo "shell $$"; head -c 48M /dev/zero > "$0"; sync'
    done = run_otelgpu("profile", "-t", "block", "--", "sh", "-c", script, str(tmp_path / "data.bin"))
    assert done.returncode == 0, done.stderr
    (shell,) = re.findall(r"^shell (\d+)$", done.stdout, re.MULTILINE)
    (said,) = re.findall(r"in no request of this profile: (.*); candidates, (.*)", done.stderr)
    assert any(float(size) >= 40 for size in re.findall(r"(\d+\.\d) MiB to", said[0]))
    (dirtied,) = re.findall(rf"\(PID {shell}, profiled\) (\d+\.\d) MiB", said[1])
    assert 48 <= float(dirtied) < 49
