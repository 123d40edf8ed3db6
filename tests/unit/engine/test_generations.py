"""Numbers of processes: one for each owner of an id, whatever comes of it and in whatever batches."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine import generations
from otelgpu.engine.generations import REMEMBERED_NS, Generations
from otelgpu.model.devices import DeviceReadings, ProcessReading
from otelgpu.model.inputs import Batch, CallsCounted, Input, ProcessGone, ProcessSeen, Tick
from otelgpu.model.process_numbers import ID_BITS, next_owner, process_id
from otelgpu.model.resource import resource

RECORD = np.dtype(
    [
        ("outer", [("head", [("time_ns", "<u8"), ("tgid", "<u4")])]),
        ("key", [("tgid", "<u4"), ("address", "<u8")]),
    ]
)
SECOND = 7 | 1 << ID_BITS


def seen(tgid: int, name: str = "", *, same: bool = False, parent: int = 0, time_ns: int = 0) -> ProcessSeen:
    return ProcessSeen(
        tgid=tgid, time_ns=time_ns, resource=resource({"name": name}), same_program=same, parent=parent
    )


def gone(tgid: int, time_ns: int = 0) -> ProcessGone:
    return ProcessGone(tgid=tgid, time_ns=time_ns)


def batch(*tgids: int) -> Batch:
    records = np.zeros(len(tgids), RECORD)
    records["outer"]["head"]["tgid"] = records["key"]["tgid"] = tgids
    records.flags.writeable = False
    return Batch(family="any", kind="any", records=records)


def after_two_owners() -> Generations:
    made = Generations()
    for item in (seen(7), gone(7), seen(7)):
        made.renumber(item)
    return made


def test_until_an_id_is_given_out_again_inputs_are_handed_on_as_they_are() -> None:
    made = Generations()
    inputs: list[Input] = [seen(7), batch(7, 8), gone(7), batch(7), gone(7), seen(8), Tick(time_ns=1)]
    assert all(made.renumber(item) is item for item in inputs)


def test_the_next_owner_has_another_number_from_its_description_on() -> None:
    made = Generations()
    assert made.renumber(seen(7)).tgid == 7  # type: ignore[union-attr]
    made.renumber(gone(7))
    late = batch(7)
    assert made.renumber(late) is late
    described = made.renumber(seen(7))
    assert isinstance(described, ProcessSeen) and described.tgid == SECOND
    assert process_id(described.tgid) == 7


def test_every_part_of_an_input_that_says_a_process_says_its_number() -> None:
    made = after_two_owners()
    own = batch(6, 7, 7)
    renumbered = made.renumber(own)
    assert isinstance(renumbered, Batch)
    assert (
        renumbered.heads["tgid"].tolist() == renumbered.records["key"]["tgid"].tolist() == [6, SECOND, SECOND]
    )
    assert own.heads["tgid"].tolist() == [6, 7, 7]
    child = made.renumber(seen(9, parent=7))
    assert isinstance(child, ProcessSeen) and (child.tgid, child.parent) == (9, SECOND)
    counted = CallsCounted(tgid=7, family="cuda", kind=1, api="cudaMalloc", count=2)
    assert made.renumber(counted) == msgspec.structs.replace(counted, tgid=SECOND)
    readings = DeviceReadings(
        time_ns=1,
        uuid="u",
        values={},
        processes=(ProcessReading(tgid=7, device=""), ProcessReading(tgid=6, device="")),
    )
    read = made.renumber(readings)
    assert isinstance(read, DeviceReadings) and [each.tgid for each in read.processes] == [SECOND, 6]
    of_another = batch(6)
    assert made.renumber(of_another).records is of_another.records  # type: ignore[union-attr]


def test_a_description_that_adds_to_one_begins_no_other_process() -> None:
    made = Generations()
    for item in (seen(7), gone(7)):
        made.renumber(item)
    assert made.renumber(seen(7, same=True)).tgid == 7  # type: ignore[union-attr]
    assert made.renumber(seen(7)).tgid == SECOND  # type: ignore[union-attr]


def test_a_number_is_the_id_again_when_nothing_is_kept_of_its_owners() -> None:
    made = after_two_owners()
    made.renumber(gone(7, 5))
    made.renumber(seen(8, time_ns=REMEMBERED_NS + 4))
    assert made.renumber(batch(7)).heads["tgid"].tolist() == [SECOND]  # type: ignore[union-attr]
    made.renumber(seen(9, time_ns=REMEMBERED_NS + 5))
    again = seen(7)
    assert made.renumber(again) is again


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "REMEMBERED", 2)
    made = Generations()
    for tgid in (7, 8, 9):
        made.renumber(gone(tgid))
    assert [made.renumber(seen(tgid)).tgid >> ID_BITS for tgid in (7, 8, 9)] == [0, 1, 1]  # type: ignore[union-attr]


def test_numbers_come_round() -> None:
    number, given = 7, []
    for _ in range(1 << (32 - ID_BITS)):
        given.append(number)
        number = next_owner(number)
    assert number == 7 and len(set(given)) == len(given) and {process_id(each) for each in given} == {7}
    assert max(given) < 1 << 32


LIVES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans()), min_size=1, max_size=12)


@given(LIVES, st.randoms(use_true_random=False))
def test_no_two_owners_have_a_number_in_common(lives: list[tuple[int, int, bool]], random: object) -> None:
    """``lives``: of processes, one after the other for each id: (id, batches, whether its end is said twice)."""
    queues: dict[int, list[list[Input]]] = {}
    for tgid, batches, twice in lives:
        inputs = [seen(tgid), *(batch(tgid, 99) for _ in range(batches)), *[gone(tgid)] * (1 + twice)]
        queues.setdefault(tgid, []).append(inputs)
    made, numbers, owners_of = Generations(), {}, {}
    pending = {
        tgid: [(life, item) for life, inputs in enumerate(each) for item in inputs]
        for tgid, each in queues.items()
    }
    while pending:
        tgid = random.choice(sorted(pending))  # type: ignore[attr-defined]
        life, item = pending[tgid].pop(0)
        if not pending[tgid]:
            del pending[tgid]
        new = made.renumber(item)
        number = int(new.heads["tgid"][0]) if isinstance(new, Batch) else new.tgid  # type: ignore[union-attr]
        assert process_id(number) == tgid
        assert numbers.setdefault((tgid, life), number) == number
        assert owners_of.setdefault(number, (tgid, life)) == (tgid, life)
