"""Records of family nccl → operations and communicators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.elf.btf import BtfError
from otelgpu.engine import registry
from otelgpu.engine.operation_signals import OperationSignals
from otelgpu.families.nccl import collective_names, names
from otelgpu.families.nccl.decode import NcclDecoder, communicators
from otelgpu.families.nccl.signals import DATATYPES, NONE, datatype_name, reduction_name, result_name
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OPERATION, OperationKind, Operations, SequenceSource
from tests.unit.families.records import btf, together

KINDS = {
    "NCCL_COLLECTIVE": OperationKind.COLLECTIVE,
    "NCCL_POINT_TO_POINT": OperationKind.POINT_TO_POINT,
    "NCCL_COMMUNICATOR_CALL": OperationKind.COMMUNICATOR,
    "NCCL_GROUP": OperationKind.GROUP,
}


def batch(struct: str = "nccl_call", kind: str = "NCCL_COLLECTIVE", **fields: Any) -> Batch:
    row = np.zeros(1, dtype=btf("nccl").dtype(struct))
    made = Batch(family="nccl", kind=struct, records=row)
    made.heads["kind"] = btf("nccl").enumerators("nccl_kind")[kind]
    made.heads["tgid"], made.heads["time_ns"] = 41, 1009
    for name, value in fields.items():
        row[name] = value
    return made


def decoded(**fields: Any) -> Operations:
    return NcclDecoder(btf("nccl")).decode(batch(**fields))


def test_every_field_is_where_an_operation_has_it() -> None:
    given = {
        **{"communicator": 3, "hash": 5, "stream": 7, "sequence": 11, "group": 13, "rank": 17, "peer": 19},
        **{"datatype": 7, "reduction": 2, "sequence_source": 1, "status": 5, "api": 23, "device": 29},
    }
    (row,) = decoded(**given)
    renamed = {"communicator": "handle", "hash": "communicator_hash"}
    assert {name: int(row[renamed.get(name, name)]) for name in given} == given
    assert (int(row["tgid"]), int(row["start_ns"])) == (41, 1009)


@pytest.mark.parametrize(("code", "size"), [(code, size) for code, (_, size) in DATATYPES.items()])
def test_bytes_are_elements_times_their_size(code: int, size: int) -> None:
    assert decoded(count=31, datatype=code)["size_bytes"].tolist() == [31 * size]


@pytest.mark.parametrize("code", [12, 200, NONE])
def test_of_elements_of_an_unknown_type_no_bytes_are_reported(code: int) -> None:
    assert decoded(count=31, datatype=code)["size_bytes"].tolist() == [0]


def test_an_absurd_count_is_bounded() -> None:
    assert decoded(count=(1 << 64) - 1, datatype=8)["size_bytes"].tolist() == [1 << 48]


def test_a_communicator_that_goes_on_by_itself_has_not_failed() -> None:
    made = together(*(batch(status=code) for code in (0, 7, 6)))
    assert NcclDecoder(btf("nccl")).decode(made)["status"].tolist() == [0, 0, 6]
    assert made.records["status"].tolist() == [0, 7, 6]  # what was recorded stays


def test_kinds_and_sources_are_numbered_as_the_model_numbers_them() -> None:
    numbers = btf("nccl").enumerators("nccl_kind")
    assert {name: numbers[name] for name in KINDS} == KINDS
    sources = btf("nccl").enumerators("nccl_sequence")
    others = {SequenceSource.CALL}  # gloo's
    assert sources == {f"NCCL_SEQUENCE_{each.name}": each for each in set(SequenceSource) - others}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_call_is_an_operation(kind: str) -> None:
    made = NcclDecoder(btf("nccl")).decode(batch(kind=kind))
    assert made["kind"].tolist() == [KINDS[kind]]
    assert made.dtype == OPERATION


def test_an_unknown_kind_is_none() -> None:
    made = together(batch(), batch(), batch())
    made.heads["kind"][1] = 99
    assert len(NcclDecoder(btf("nccl")).decode(made)) == 2


def test_a_communicator_is_reported_as_it_was_recorded() -> None:
    decoder = NcclDecoder(btf("nccl"))
    given = {"communicator": 3, "hash": 5, "parent": 7, "rank": 1, "ranks": 11, "device": 2, "async_error": 6}
    reported = batch("nccl_communicator", "NCCL_COMMUNICATOR", **given, created=1, ended=1)
    reported.heads["duration_ns"] = 9  # of the call that made it
    (seen,) = communicators(reported)
    assert (seen.address, seen.hash, seen.parent) == (3, 5, 7)
    assert (seen.rank, seen.ranks, seen.device, seen.async_error) == (1, 11, 2, 6)
    assert (seen.tgid, seen.time_ns, seen.duration_ns) == (41, 1018, 9)
    assert (seen.created, seen.ended) == (True, True)
    assert len(decoder.decode(reported)) == 0
    assert communicators(batch()) == []


def test_a_capture_whose_records_are_laid_out_otherwise_is_refused() -> None:
    class Other:
        def __getattr__(self, name: str) -> Any:
            return getattr(btf("nccl"), name)

        def dtype(self, _name: str) -> np.dtype[Any]:
            return btf("nccl").dtype("nccl_communicator")

    with pytest.raises(BtfError, match="nccl_call"):
        NcclDecoder(Other())  # type: ignore[arg-type]


def test_numbers_have_the_names_of_the_header() -> None:
    assert [result_name("ncclAllReduce", code) for code in (2, 8, 77)] == [
        *("ncclSystemError", "ncclTimeout", "ncclResult_t(77)"),
    ]
    assert [datatype_name(code) for code in (7, 11, 14, NONE)] == [
        *("float32", "float8e5m2", "ncclDataType_t(14)", ""),
    ]
    assert [reduction_name(code) for code in (0, 4, 5, NONE)] == ["sum", "avg", "custom", ""]


def test_a_function_is_called_the_same_in_all_its_forms() -> None:
    found = [
        *("ncclAllReduce", "ncclAllReduceConfig", "ncclBcast", "ncclBroadcastConfig", "ncclSend"),
        *("ncclCommInitRankConfig", "ncclGroupEnd"),
    ]
    assert [names.operation_of(name) for name in found] == [
        *("AllReduce", "AllReduce", "Broadcast", "Broadcast", "Send", "CommInitRankConfig", "GroupEnd"),
    ]


def test_what_is_reported_of_calls_and_of_collectives_has_the_same_keys() -> None:
    for key in ("SCOPE", "HASH", "RANK", "OPERATION", "BYTES"):
        assert getattr(names, key) == getattr(collective_names, key)


def signals() -> OperationSignals:
    operations = registry.families()["nccl"].operations
    assert operations is not None
    return operations.signals


def test_every_kind_has_its_attributes_and_every_column_a_value_per_row() -> None:
    table, rows = signals(), np.zeros(3, dtype=OPERATION)
    assert set(table.attributes) == set(KINDS.values()) == set(table.labels)
    columns = [spec.column for specs in table.attributes.values() for spec in specs]
    columns += [column for labels in table.labels.values() for _, _, column in labels]
    columns += [spec.value for spec in table.metrics if spec.value is not None]
    columns += [spec.attribute[2] for spec in table.metrics if spec.attribute is not None]
    columns += [total.value for total in table.summaries if total.value is not None]
    assert {np.shape(column(rows)) for column in columns} == {(3,)}


def test_each_function_that_moves_data_is_counted_under_its_name() -> None:
    image = read_image("nccl")
    specs = image.constants("specs", "spec")
    numbers = image.btf.enumerators("nccl_kind")
    moving = {numbers["NCCL_COLLECTIVE"], numbers["NCCL_POINT_TO_POINT"]}
    for number, name in NcclDecoder(btf("nccl")).apis.items():
        rules = [
            spec for spec in signals().metrics if spec.apis and name in spec.apis and spec.metric.unit == "By"
        ]
        assert len(rules) == (int(specs[number]["kind"]) in moving), name
        for rule in rules:
            assert rule.attribute is not None
            assert rule.attribute[1](0) == names.operation_of(name)
            assert rule.kinds == (int(specs[number]["kind"]),)
