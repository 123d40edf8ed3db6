"""Whatever stands in a file, it is read, or counted; it raises nothing, and what is taken could be."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from otelgpu.store import open_inputs
from otelgpu.store.reasons import MEANINGS
from otelgpu.store.row_checks import REASON
from tests.rig.examples import examples
from tests.unit.store.otlp_spans import job
from tests.unit.store.parquet_files import row
from tests.unit.store.test_flight_recorder import dump, entry
from tests.unit.store.test_kineto import Trace
from tests.unit.store.test_nccl_inspector import line


def _otlp(_: Path) -> bytes:
    return b"".join(rank.line() for rank in job(2, 2, device_ms=1))


def _parquet(folder: Path) -> bytes:
    path = folder / "source.parquet"
    duckdb.sql(" UNION ALL ".join(row(rank=rank, name=f"kernel {rank}") for rank in range(9))).write_parquet(
        str(path)
    )
    return path.read_bytes()


def _kineto(_: Path) -> bytes:
    trace = Trace()
    trace.step(0, 0, 10)
    trace.all_reduce(1, 2, 3)
    trace.add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 3)
    return json.dumps(trace.document).encode()


def _pickle(_: Path) -> bytes:
    return pickle.dumps(dump(entry(1, duration_ms=1), entry(2, state="started")), protocol=2)


def _json(_: Path) -> bytes:
    return json.dumps(dump(entry(1, duration_ms=1), entry(2, state="started"))).encode()


def _inspector(_: Path) -> bytes:
    return "".join(line(rank, number) for rank in (0, 1) for number in range(2)).encode()


Damage = Callable[[bytes], bytes]
NUMBERS = [
    b"-1",
    b"1e999",
    b"99999999999999999999999999",
    b'"\\ud800"',
    b"null",
    b"[]",
    b"{}",
    b"\x00",
    b"9" * 5000,
]


@st.composite
def damages(draw: st.DrawFn) -> list[Damage]:
    """Bytes are cut out, turned, doubled, or replaced by what a number could be."""
    made: list[Damage] = []
    for _ in range(draw(st.integers(1, 4))):
        at, length = draw(st.floats(0, 1)), draw(st.integers(1, 40))
        instead = draw(st.sampled_from(NUMBERS) | st.binary(max_size=8) | st.just(b""))

        def damage(content: bytes, at: float = at, length: int = length, instead: bytes = instead) -> bytes:
            begin = int(at * len(content))
            return content[:begin] + instead + content[begin + length :]

        made.append(damage)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("make", [_otlp, _parquet, _kineto, _pickle, _json, _inspector])
@examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damages())
def test_a_damaged_file_is_read_or_counted(
    tmp_path: Path, make: Callable[[Path], bytes], damage: list[Damage]
) -> None:
    content = make(tmp_path)
    for each in damage:
        content = each(content)
    path = tmp_path / "rank1.damaged"
    path.write_bytes(content)
    with open_inputs([str(path)]) as store:
        wrong = store.connection.sql(f"SELECT count(*) FROM ops WHERE {REASON} > 0").fetchall()
        assert wrong == [(0,)]
        assert store.rejected.keys() <= MEANINGS.keys()
        store.keep(tmp_path / "kept")
