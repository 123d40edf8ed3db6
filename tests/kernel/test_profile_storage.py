"""Slow calls on files, and requests to the block device below them, against what the program itself measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from otelgpu.model.files import FileCall
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import OPERATION_SHIFT, SampleKind
from tests.kernel.observing import Watch
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
        assert taken.decoder.name_of(SampleKind.FILE, int(found["other"])) == "checkpoint.bin"
        assert len(taken.under(samples[samples["other"] == found["other"]], "saves")) == 1


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
