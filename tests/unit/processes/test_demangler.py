"""Names that libstdc++ does not return from: they stay as they are, and the others are named all the same."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from otelgpu.processes.demangler import Demangler
from otelgpu.processes.reader.client import Limits
from otelgpu.symbols.demangle import MAX_NAME_LENGTH

HANGING = ("_ZNDTsrCGRGVR", "_ZNDTsrUy_quHT_msrZ3fooHSaclS0__UlvE_yfp_")
LIMITS = Limits(busy_s=0.3, wall_s=20.0, advance_s=1.0, share=0.01)
ME = os.getpid()


@pytest.fixture
def demangle() -> Iterator[Demangler]:
    made = Demangler(LIMITS)
    yield made
    made.close()


@pytest.mark.parametrize("name", HANGING)
def test_a_name_without_end_stays_and_is_not_tried_again(demangle: Demangler, name: str) -> None:
    assert demangle(name, ME) == name
    assert demangle("_Z4axpyfPfS_", ME) == "axpy(float, float*, float*)"
    assert demangle(name, ME) == name
    assert demangle.counters == {**dict.fromkeys(demangle.counters, 0), "worker_timed_out": 1}


def test_who_has_many_such_names_is_refused_and_keeps_nobody_waiting(demangle: Demangler) -> None:
    began = time.monotonic()
    for number in range(40):
        name = f"_ZNDTsrCGRGVR{number}"
        assert demangle(name, ME) == name
    assert demangle.counters["owner_over_budget"] > 20
    assert time.monotonic() - began < 40 * LIMITS.busy_s
    gone = 1 << 22  # no process: somebody else pays
    assert demangle("_Z4workv", gone) == "work()"


def test_what_libstdcxx_does_not_see_needs_no_worker(demangle: Demangler) -> None:
    demangle.close()
    assert demangle("__device_stub__axpy", ME) == "axpy"
    assert demangle("_RNvC6_123foo3bar", ME) == "123foo::bar"
    assert demangle("_Z" + "a" * MAX_NAME_LENGTH, ME) == "_Z" + "a" * (MAX_NAME_LENGTH - 2)
    assert demangle("plain", ME) == "plain"


def test_a_stub_of_a_kernel_is_named_like_it(demangle: Demangler) -> None:
    assert demangle("__device_stub__Z4workPfi", ME) == "work(float*, int)"
