"""The child that opens RDMA devices is bounded, and whatever it does, it is counted and raises nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from otelgpu.families.rdma.discover import devices as verbs_devices
from otelgpu.families.rdma.discover.devices import have_devices, open_devices

OFFSETS = {
    "CONTEXT_POLL_CQ": 96,
    "CONTEXT_POST_SRQ_RECV": 168,
    "CONTEXT_POST_SEND": 208,
    "CONTEXT_POST_RECV": 216,
    "CONTEXT_ABI_COMPAT": 320,
    "CONTEXT_CREATE_QP_EX": -56,
    "CONTEXT_CREATE_CQ_EX": -120,
}
MARK = (1 << 64) - 1
CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")


def answering(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """The child does this instead."""
    monkeypatch.setattr(verbs_devices, "_PROGRAM", program)


def said(**words: int) -> str:
    given = dict.fromkeys(("post_send", "post_recv", "poll_cq", "post_srq_recv"), 16)
    return f"{given | {'create_qp_ex': 32, 'create_cq_ex': 0, 'extended': MARK, 'pair': [64, 0]} | words}".replace(
        "'", '"'
    )


def learnt(**options: Any) -> tuple[list[tuple[int, dict[str, int], list[int]]], dict[str, int]]:
    found: list[tuple[int, dict[str, int], list[int]]] = []

    def learn(child: int, number: int, functions: dict[str, int], pair: list[int]) -> None:
        os.kill(child, 0)  # it lives
        found.append((number, functions, pair))

    return found, open_devices(OFFSETS, learn, **options)


def test_what_it_reports_is_learnt_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = f"[{said()}, {said(extended=0, post_srq_recv=0)}]"
    answering(monkeypatch, f"print('''{{\"devices\": 3, \"contexts\": {contexts}}}''', flush=True); input()")
    found, failed = learnt()
    plain = {"post_send": 16, "post_recv": 16, "poll_cq": 16}
    assert found == [(-1, plain | {"post_srq_recv": 16, "create_qp_ex": 32}, [64, 0]), (-2, plain, [64, 0])]
    assert failed == {"devices_not_opened": 1}


@pytest.mark.parametrize(
    "program",
    [
        "import os; os.kill(os.getpid(), 11)",
        "print('no JSON')",
        "print('[]')",
        'print(\'{"devices": 1, "contexts": [{"post_send": 1}]}\')',
        'print(\'{"devices": 1, "contexts": [7]}\')',
        "import sys; sys.stdout.write('x' * 100_000)",
    ],
    ids=["crash", "text", "list", "too few", "number", "flood"],
)
def test_what_is_no_answer_is_counted(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    answering(monkeypatch, program)
    assert learnt() == ([], {"devices_unanswered": 1})


def test_a_library_that_is_not_there_is_counted() -> None:
    assert learnt(library="libnobodyhas.so.1") == ([], {"devices_unanswered": 1})


def test_a_library_that_hangs_ends_with_the_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "libibverbs.so.1")  # to open it waits for a writer
    before, children = set(os.listdir("/proc/self/fd")), CHILDREN.read_text()
    assert learnt(library=str(tmp_path / "libibverbs.so.1"), limit_s=0.3) == ([], {"devices_unanswered": 1})
    assert set(os.listdir("/proc/self/fd")) == before
    assert CHILDREN.read_text() == children


def test_a_child_that_is_held_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every program is that maps a library for the first time, with ``--hold-on-load``."""
    answering(
        monkeypatch,
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)\n"
        f"print('''{{\"devices\": 1, \"contexts\": [{said()}]}}''', flush=True); input()",
    )
    began = time.monotonic()
    found, failed = learnt(limit_s=30)
    assert (len(found), failed) == (1, {})
    assert time.monotonic() - began < 25


def test_without_an_interpreter_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert learnt() == ([], {"devices_unanswered": 1})


def test_signals_that_we_ignore_do_not_keep_it_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(
        monkeypatch, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    )
    began = time.monotonic()
    assert learnt(limit_s=0.3) == ([], {"devices_unanswered": 1})
    assert time.monotonic() - began < 30


def test_whether_there_are_devices(tmp_path: Path) -> None:
    assert not have_devices(tmp_path / "none") and not have_devices(tmp_path)
    (tmp_path / "rxe0").mkdir()
    assert have_devices(tmp_path)
