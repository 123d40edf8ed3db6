"""Records of family profile become samples, in their order; the numbers of both sides are the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from otelgpu.engine import registry
from otelgpu.families.profiles.decode import ProfileDecoder
from otelgpu.families.profiles.discover.stacks import PYTHON_ENTRY
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch
from otelgpu.model.samples import SampleKind, ThreadState

BTF = read_image("profile").btf
RECORD = BTF.dtype("profile_sample")
HEADER = Path(__file__).resolve().parents[4] / "bpf/profile/profile.h"


def batch(*found: dict[str, object], kind: str = "profile_sample") -> Batch:
    records = np.zeros(len(found), dtype=RECORD if kind == "profile_sample" else BTF.dtype(kind))
    for record, fields in zip(records, found, strict=True):
        record["head"]["kind"] = SampleKind.CPU
        for name, value in fields.items():
            (record["head"] if name in RECORD["head"].names else record)[name] = value
    return Batch(family="profile", kind=kind, records=records)


def test_a_sample_is_what_the_record_says() -> None:
    (row,) = ProfileDecoder().samples(
        batch(
            {
                **{"time_ns": 2**63, "duration_ns": 7, "tgid": 2**31, "tid": 101, "cpu": 300},
                **{"kind": SampleKind.OFF_CPU, "trace_id": np.arange(16), "span_id": np.arange(8)},
                **{"trace_flags": 1, "context_source": 2, "stack": 2**64 - 1, "value": 5, "bytes": 4096},
                **{"other": 2**40, "name": b"worker-17", "state": ThreadState.UNINTERRUPTIBLE},
            }
        )
    )
    reported = {name: row[name].tolist() for name in row.dtype.names or ()}
    assert reported == {
        **{"time_ns": 2**63, "duration_ns": 7, "tgid": 2**31, "tid": 101, "cpu": 300},
        **{"kind": SampleKind.OFF_CPU, "trace_id": list(range(16)), "span_id": list(range(8))},
        **{"trace_flags": 1, "context_source": 2, "stack": 2**64 - 1, "value": 5, "size_bytes": 4096},
        **{"other": 2**40, "name": b"worker-17", "state": ThreadState.UNINTERRUPTIBLE, "reserved": 0},
    }


def test_samples_keep_their_order_and_unknown_kinds_are_passed_over() -> None:
    kinds = [SampleKind.CALL, 99, SampleKind.USER, 0, 16, SampleKind.WAKER]
    found = ProfileDecoder().samples(batch(*({"kind": kind, "tid": n} for n, kind in enumerate(kinds))))
    assert found["kind"].tolist() == [SampleKind.CALL, SampleKind.USER, SampleKind.WAKER]
    assert found["tid"].tolist() == [0, 2, 5]


def test_a_value_that_is_no_int64_and_a_state_that_is_none() -> None:
    (row,) = ProfileDecoder().samples(batch({"value": 2**64 - 1, "state": 77}))
    assert (row["value"], row["state"]) == (2**63 - 1, ThreadState.UNKNOWN)


@pytest.mark.parametrize("kind", ["profile_stack", "profile_sample"])
def test_stacks_and_empty_batches_have_no_samples(kind: str) -> None:
    some = batch({"tgid": 1}, kind=kind) if kind == "profile_stack" else batch()
    assert len(ProfileDecoder().samples(some)) == 0


def test_the_family_has_to_be_asked_for_and_is_there_at_once_then() -> None:
    family = registry.families()["profile"]
    assert "profile" not in registry.select(())
    assert list(registry.select(("profile", "cuda"))) == ["cuda", "profile"]
    assert family.at_once(registry.select(("profile",)))


def test_the_numbers_of_kinds_and_states_are_those_of_the_header() -> None:
    kinds = {n.removeprefix("PROFILE_"): v for n, v in BTF.enumerators("profile_kind").items()}
    assert {kind.name: kind.value for kind in SampleKind} == {n: v for n, v in kinds.items() if n != "STACK"}
    states = {n.removeprefix("STATE_"): v for n, v in BTF.enumerators("profile_state").items()}
    assert {state.name: state.value for state in ThreadState} == states


def test_the_flag_of_python_frames_is_that_of_the_header() -> None:
    found = re.search(r"#define PYTHON_ENTRY\s+\(1ull << (\d+)\)", HEADER.read_text())
    assert found is not None and 1 << int(found[1]) == PYTHON_ENTRY
