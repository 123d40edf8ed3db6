"""NCCL's calls as the kernel sees them: the real libraries without a GPU, whose calls fail and say how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pytest

from otelgpu.elf.dwarf import struct_members
from otelgpu.elf.struct_member import Member
from otelgpu.families.nccl.decode import communicators as communicators_in
from otelgpu.families.nccl.discover.communicators import known_layout
from otelgpu.families.nccl.discover.layouts import LISTED, MAGIC, layout_of_members
from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OperationKind, SequenceSource
from otelgpu.processes.elf_files import open_elf
from tests.kernel.observing import Watch
from tests.rig.nccl_client import NcclClient
from tests.rig.nccl_wheels import VERSIONS, nccl_library, parameters

pytestmark = pytest.mark.long

IMAGE: Final = 2 << 20
INVALID_ARGUMENT: Final = 4
TIMES: Final = 7
# Given what is no communicator these do not look before they use it; given none at all they do nothing.
UNCHECKED: Final = ("ncclCommFinalize", "ncclCommAbort")
# What has no record for each call of its own.
UNRECORDED: Final = {"ncclGroupStart", "ncclGroupEnd", "ncclGroupSimulateEnd", "ncclCommGetAsyncError"}
FEW: Final = {"datatype": 8, "op": 5}  # of which there are no more
SAME: Final = {  # what a call may be given besides what is looked at
    **dict.fromkeys(("config", "key", "flags", "revokeFlags", "shrinkFlags", "winFlags", "peerWin"), 0),
    **dict.fromkeys(("peerWinOffset", "sigIdx", "ctx", "handle", "devlist", "ndev", "simInfo"), 0),
    **dict.fromkeys(("nDesc", "nId", "excludeRanksCount"), 1),
}
ADDRESSES: Final = (
    *("newcomm", "comms", "commIds", "uniqueId", "asyncError", "signalDescs", "excludeRanksList"),
    *("sendbuff", "recvbuff", "buff", "localbuff", "win"),
)


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    try:
        nccl_library(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))
    return str(request.param)


@pytest.fixture
def client(nccl: Watch, version: str) -> Iterator[NcclClient]:
    """A process with the real library, observed."""
    nccl.source.prepare_file(nccl_library(version))
    with NcclClient(nccl_library(version)) as process:
        nccl.observe(process.pid)
        yield process


def calls(watch: Watch, tgid: int) -> list[np.void]:
    """The records of calls of a process, as they were submitted."""
    return [
        record
        for item in watch.inputs
        if isinstance(item, Batch) and item.kind == "nccl_call"
        for record in item.records[item.heads["tgid"] == tgid]
    ]


def seen(watch: Watch, tgid: int) -> list[CommunicatorSeen]:
    batches = [item for item in watch.inputs if isinstance(item, Batch)]
    return [one for batch in batches for one in communicators_in(batch) if one.tgid == tgid]


def numbers(watch: Watch) -> dict[str, int]:
    """Observed functions → numbers of ``enum nccl_api``."""
    found = watch.source.btf["nccl"].enumerators("nccl_api")
    return {n.removeprefix("API_"): v for n, v in found.items() if n not in ("API_NONE", "API_COUNT")}


def arguments(name: str, given: Sequence[str], image: int, room: int, number: int) -> dict[str, int | str]:
    """What a function is called with the ``number``-th time: every argument has its own value."""
    found: dict[str, int | str] = {}
    for place, parameter in enumerate(given):
        if parameter == "comm" and not name.startswith("ncclCommInit"):
            found[parameter] = 0 if name in UNCHECKED else image
        elif parameter in ("comm", *ADDRESSES):
            found[parameter] = room
        elif parameter == "commId":
            found[parameter] = bytes([number + 1] * 128).hex()
        elif parameter in SAME:
            found[parameter] = SAME[parameter]
        else:
            value = 1009 * (place + 1) + 31 * number
            found[parameter] = value % FEW.get(parameter, 1 << 30)
    return found


def expected(name: str, given: dict[str, int | str]) -> dict[str, Any]:
    """The slots of the record that report of arguments."""

    def of(*names: str, otherwise: int = 0) -> int:
        return next((int(given[each]) for each in names if each in given), otherwise)

    registers = name in ("ncclCommRegister", "ncclCommWindowRegister")
    makes = name.startswith(("ncclCommInit", "ncclCommGrow"))
    moves = not name.startswith(("ncclComm", "ncclGroup"))
    return {
        "communicator": 0 if name.startswith("ncclCommInit") else of("comm"),
        "count": of("size") if registers else of("count", "sendcount", "recvcount"),
        "datatype": 0 if registers else of("datatype", otherwise=255),
        "reduction": of("op", otherwise=255),
        "peer": 29 if name == "ncclWaitSignal" else of("root", "peer", otherwise=-1),
        "stream": of("stream") if moves else 0,
        "extra": of("nranks", "nRanks", "ndev") if makes else 0,
    }


def test_every_function_that_queues_work_is_observed(nccl: Watch, version: str) -> None:
    declared = parameters(version)
    assert {name for name, given in declared.items() if "stream" in given} <= numbers(nccl).keys()


def test_one_probe_for_each_function_that_the_library_has(nccl: Watch, version: str) -> None:
    library = nccl_library(version)
    nccl.source.prepare_file(library)
    probed_file = nccl.probed_file(library)
    assert probed_file.refused == ()
    with open_elf(library) as file:
        there = file.image.function_offsets(numbers(nccl).keys())
    assert set(probed_file.symbols) == set(there) == numbers(nccl).keys() & parameters(version).keys()


def test_every_call_arrives_with_each_argument(nccl: Watch, client: NcclClient, version: str) -> None:
    image, room, signals = client.map(IMAGE), client.map(4096), client.map(4096, [(4, 4, 29)])
    client.ask("fill", image, 0xFF, IMAGE)
    declared = parameters(version)
    chosen = sorted(numbers(nccl).keys() & declared.keys() - UNRECORDED)
    made: list[tuple[str, dict[str, Any], int]] = []

    def work() -> None:
        for name in chosen:
            for number in range(TIMES):
                given = arguments(name, declared[name], image, room, number)
                if "signalDescs" in given:
                    given["signalDescs"] = signals  # struct ncclWaitSignalDesc_t: its peer is 29
                client.write(room, [(0, 8, 0)])
                (status,) = client.call(name, *(given[each] for each in declared[name]))
                made.append((name, expected(name, given), status))

    nccl.during(work, limit_s=120)
    records = calls(nccl, client.pid)
    names = {number: name for name, number in numbers(nccl).items()}
    assert [names[int(record["api"])] for record in records] == [name for name, _, _ in made]
    for record, (name, wanted, status) in zip(records, made, strict=True):
        assert {slot: int(record[slot]) for slot in wanted} == wanted, name
        assert (int(record["status"]), int(record["head"]["returned"]), int(record["hash"])) == (status, 1, 0)
    assert {status for name, _, status in made if name == "ncclAllReduce"} == {INVALID_ARGUMENT}
    assert len(made) == TIMES * len(chosen)
    # What is no communicator is none, and is counted.
    assert set(nccl.losses()) == {("nccl", "communicator_implausible")}


def test_an_alias_is_the_same_call(nccl: Watch, client: NcclClient) -> None:
    nccl.during(lambda: client.call("pncclAllReduce", 1, 2, 3, 4, 0, 0, 5, times=23))
    records = calls(nccl, client.pid)
    assert Counter(int(record["api"]) for record in records) == {numbers(nccl)["ncclAllReduce"]: 23}


def test_a_call_made_inside_another_is_part_of_it(nccl: Watch, client: NcclClient) -> None:
    nccl.during(lambda: client.call("ncclBcast", 1, 41, 7, 3, 0, 5, times=23))
    records = calls(nccl, client.pid)
    assert Counter(int(record["api"]) for record in records) == {numbers(nccl)["ncclBcast"]: 23}
    assert {int(record["count"]) for record in records} == {41}


@pytest.mark.parametrize(
    ("options", "returned"),
    [({"sessions": False}, 1), ({"return_probes": False}, 0)],
    ids=["pairs", "entries"],
)
def test_kernels_that_can_do_less_see_the_same_calls(
    watch: Callable[..., Watch], version: str, options: dict[str, bool], returned: int
) -> None:
    """Before Linux 6.13 entry and return are two probes; where return probes would harm there are none."""
    watching = watch(families=("nccl",), **options)
    watching.source.prepare_file(nccl_library(version))
    with NcclClient(nccl_library(version)) as process:
        watching.observe(process.pid)

        def work() -> None:
            process.call("ncclBcast", 1, 41, 7, 3, 0, 5, times=23)
            process.call("ncclGroupStart")
            process.call("ncclBroadcast", 1, 2, 43, 7, 3, 0, 5, times=5)
            process.call("ncclGroupEnd")

        watching.during(work)
        records = calls(watching, process.pid)
        names = {number: name for name, number in numbers(watching).items()}
        assert Counter((names[int(r["api"])], int(r["group"])) for r in records) == {
            ("ncclBcast", 0): 23,
            ("ncclBroadcast", 1): 5,
            ("ncclGroupEnd", 1): 1,
        }
        assert {int(r["head"]["returned"]) for r in records} == {returned}
        assert {int(r["status"]) for r in records} == {INVALID_ARGUMENT if returned else 0}
        assert watching.losses() == {}


def test_a_group_is_one_operation_after_its_members(nccl: Watch, client: NcclClient) -> None:
    def work() -> None:
        for members in (3, 0, 5):
            client.call("ncclGroupStart")
            client.call("ncclGroupStart")  # groups nest: only the outermost one counts
            for peer in range(members):
                client.call("ncclSend", 1, 41, 9, peer, 0, 0x99)
            client.call("ncclGroupEnd")
            client.call("ncclGroupEnd")
        client.call("ncclRecv", 1, 41, 9, 2, 0, 0x99)

    nccl.during(work)
    reported = [(int(r["head"]["kind"]), int(r["group"]), int(r["peer"])) for r in calls(nccl, client.pid)]
    point, group = OperationKind.POINT_TO_POINT, OperationKind.GROUP
    assert reported == [
        *((point, 1, peer) for peer in range(3)),
        (group, 1, -1),
        (group, 2, -1),
        *((point, 3, peer) for peer in range(5)),
        (group, 3, -1),
        (point, 0, 2),
    ]
    groups = [record for record in calls(nccl, client.pid) if record["head"]["kind"] == group]
    assert [int(record["extra"]) for record in groups] == [3, 0, 5]
    last = groups[-1]["head"]
    members = [r["head"] for r in calls(nccl, client.pid) if r["group"] == 3 and r["head"]["kind"] == point]
    assert all(last["time_ns"] < m["time_ns"] for m in members)
    assert last["time_ns"] + last["duration_ns"] > max(m["time_ns"] + m["duration_ns"] for m in members)


def test_the_end_of_a_group_that_began_unseen_is_counted(nccl: Watch, version: str) -> None:
    with NcclClient(nccl_library(version)) as process:
        process.call("ncclGroupStart")
        nccl.observe(process.pid)
        nccl.during(lambda: process.call("ncclGroupEnd"))
        assert calls(nccl, process.pid) == []
        assert nccl.total("nccl", "group_begin_unseen") == 1


def image_of(
    version: str, *, rank: int, hash_: int, ranks: int = 8, device: int = 3
) -> list[tuple[int, int, int]]:
    """What makes zeroed memory a communicator of that version."""
    layout = LISTED[version]
    return [
        *((0, 8, MAGIC), (layout.end_at, 8, MAGIC), (layout.hash_at, 8, hash_)),
        *((layout.rank_at, 4, rank), (layout.ranks_at, 4, ranks), (layout.device_at, 4, device)),
    ]


@pytest.fixture(scope="module")
def members(version: str) -> dict[str, Member]:
    """Those of struct ncclComm, by the library's own debugging information."""
    with open_elf(nccl_library(version)) as file:
        info, abbreviations, strings = (
            section.content if (section := file.image.section(name)) else b""
            for name in (".debug_info", ".debug_abbrev", ".debug_str")
        )
        found = struct_members(info, abbreviations, strings, b"", "ncclComm")
    assert found is not None
    return found


def test_the_table_is_what_the_library_says_itself(members: dict[str, Member], version: str) -> None:
    offsets = {name: (member.offset, member.elements) for name, member in members.items()}
    assert layout_of_members(offsets, version) == LISTED[version]
    with open_elf(nccl_library(version)) as file:
        assert known_layout(file.image) == (version, LISTED[version], "listed")


def test_the_real_library_and_the_programs_read_one_communicator(
    nccl: Watch, client: NcclClient, version: str, members: dict[str, Member]
) -> None:
    """ncclCommGetAsyncError looks at both ends and at asyncResult: it reports an error, which is reported."""
    layout = LISTED[version]
    image = client.map(IMAGE)
    client.ask("fill", image, 0, IMAGE)  # what nobody has touched cannot be read by a probe
    client.write(image, image_of(version, rank=5, hash_=0xFEEDFACE12345678))
    client.write(image, [(members["asyncResult"].offset, 4, 6)])  # ncclRemoteError
    answer = client.map(4096)
    if layout.sequences:
        client.write(image, [(layout.sequences_at + 8 * 4, 8, 977)])  # AllReduce
        client.write(image, [(layout.sequences_at + 8 * 2, 8, 983)])  # AllGather

    def work() -> list[int]:
        results = client.call("ncclCommGetAsyncError", image, answer, times=3)
        client.write(image, [(layout.end_at, 8, 1)])  # the library goes no further than this
        results += client.call("ncclAllReduce", 1, 2, 3, 4, 0, image, 5)
        return results + client.call("ncclAllGather", 1, 2, 3, 4, image, 5)

    assert nccl.during(work) == [0, 0, 0, INVALID_ARGUMENT, INVALID_ARGUMENT]
    assert client.read(answer, 4) == 6
    reported = seen(nccl, client.pid)
    assert [(one.hash, one.rank, one.ranks, one.device, one.async_error) for one in reported] == [
        (0xFEEDFACE12345678, 5, 8, 3, 0),
        (0xFEEDFACE12345678, 5, 8, 3, 6),
    ]
    reduced, gathered = calls(nccl, client.pid)
    source = SequenceSource.FUNCTION if layout.sequences else SequenceSource.UNKNOWN
    for record, sequence in ((reduced, 977), (gathered, 983)):
        assert (int(record["hash"]), int(record["rank"]), int(record["device"])) == (0xFEEDFACE12345678, 5, 3)
        assert int(record["sequence"]) == (sequence if layout.sequences else 0)
        assert int(record["sequence_source"]) == source
    assert nccl.losses() == {}
