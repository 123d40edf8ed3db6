"""A live source ends as a whole: what cannot be closed keeps nothing else open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from otelgpu.kernel.loader import LoadedFamily
from tests.kernel.observing import Watch, held_programs, living_programs, wait_until
from tests.rig import fake_cudart_path, start_cuda_client


def refuse_once(close: Callable[[LoadedFamily], None], refused: list[str]) -> Callable[[LoadedFamily], None]:
    """Of each family the first try fails, when it is done."""

    def closing(loaded: LoadedFamily) -> None:
        close(loaded)
        if loaded.image.family not in refused:
            refused.append(loaded.image.family)
            raise OSError(f"no {loaded.image.family}")

    return closing


def test_what_cannot_be_closed_keeps_nothing_else_open_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, threads = held_programs(os.getpid()), threading.active_count()
    watching = Watch(families=("cuda", "http"))
    with start_cuda_client(calls=23) as client:
        watching.source.prepare_file(fake_cudart_path())
        watching.observe(client.pid)
        watching.during(client.finish)
    assert watching.calls(client.pid)["cudaLaunchKernel"] == 23
    made = held_programs(os.getpid()) - before
    assert len(made) > 10
    refused: list[str] = []
    monkeypatch.setattr(LoadedFamily, "close", refuse_once(LoadedFamily.close, refused))
    with pytest.raises(OSError, match=r"^no "):
        watching.source.close()
    assert set(refused) == {"process", "cuda", "http"}
    assert held_programs(os.getpid()) == before
    wait_until(lambda: not living_programs(made), "the kernel has taken its programs back")
    assert threading.active_count() == threads
    watching.source.close()
    assert len(refused) == 3


def test_a_source_that_is_closed_before_it_observes_anybody_leaves_nothing() -> None:
    before = held_programs(os.getpid())
    watching = Watch(families=("cuda",))
    watching.source.close()
    watching.source.close()
    assert held_programs(os.getpid()) == before
