"""A wait for the interpreter's lock is reported by the frames that lead to it, with symbols or without."""

from __future__ import annotations

import pytest

from otelgpu.families.profiles.gil import gil_marks, waits_for_gil
from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame
from tests.unit.families.profiles.profile_builders import native, python

WAIT = (
    Frame(type=FrameType.KERNEL, name="futex_wait"),
    native("__futex_abstimed_wait_common", "/lib/libc.so.6"),
)
CONDITION = native("pthread_cond_timedwait", "/lib/libc.so.6")
WORKER = python("worker")
STRIPPED = native("python3.11+0x1a2b30", "/usr/bin/python3.11")


@pytest.mark.parametrize(
    "frames",
    [
        (*WAIT, CONDITION, native("take_gil", "/usr/bin/python3.11"), WORKER),
        (*WAIT, CONDITION, native("take_gil.lto_priv.0", "/usr/bin/python3.11"), WORKER),
        (*WAIT, CONDITION, STRIPPED, WORKER),
        (*WAIT, CONDITION, native("libpython3.12.so.1.0+0x10", "/opt/lib/libpython3.12.so.1.0"), WORKER),
        (
            *WAIT,
            native("x"),
            native("PyEval_RestoreThread", "/usr/bin/python3.11"),
            native("time_sleep"),
            WORKER,
        ),
        (*WAIT, native("PyGILState_Ensure"), native("callback", "/lib/libgomp.so")),
    ],
)
def test_it_is_a_wait_for_the_lock(frames: tuple[Frame, ...]) -> None:
    assert waits_for_gil(map(gil_marks, frames))


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (WORKER,),
        (*WAIT, native("sem_clockwait", "/lib/libc.so.6"), native("PyThread_acquire_lock_timed"), WORKER),
        (*WAIT, CONDITION, native("c10::wait", "/lib/libtorch.so"), STRIPPED, WORKER),
        (*WAIT, native("x"), STRIPPED, WORKER),
        (*WAIT, CONDITION, native("query", "/lib/python3.11/site-packages/db.so"), WORKER),
        (*WAIT, WORKER, native("PyEval_RestoreThread")),  # further out: it has the lock
    ],
)
def test_it_is_another_wait(frames: tuple[Frame, ...]) -> None:
    assert not waits_for_gil(map(gil_marks, frames))
