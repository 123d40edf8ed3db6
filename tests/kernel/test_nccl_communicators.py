"""How communicators are found to be laid out, and read: images of each version's, handed out by a fake."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from otelgpu.families.nccl.discover.communicators import LibraryCopy, NcclLayouts
from otelgpu.families.nccl.discover.layouts import LISTED, MAGIC
from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import SequenceSource
from tests.kernel.observing import Watch
from tests.kernel.test_nccl_capture import IMAGE, calls, image_of, seen
from tests.rig.nccl_client import NcclClient

SOURCE: Final = Path(__file__).with_name("data") / "communicators.c"
SECRET: Final = 0x5EC4E7_0F_A77A1234
ID: Final = (SECRET.to_bytes(8, "little") + bytes(range(120))).hex()
HASH: Final = 0xFEEDFACE12345678
RANK, RANKS, DEVICE = 5, 8, 3
UNLISTED: Final = "2.99.1"
Built = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Built:
    """Compile the fake as ``libnccl.so.2`` of its own build."""

    def make(version: str | None, *options: str) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}" / "libnccl.so.2"
        path.parent.mkdir()
        reported = [f'-DVERSION="{version}"'] if version else []
        # A number of its own: the same build is the same library, wherever it lies.
        own = f"-Wl,--build-id=0x{abs(hash((str(path), version, options))):016x}"
        command = ["gcc", "-shared", "-fPIC", "-O1", *reported, *options, own, "-o", path, SOURCE]
        made = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert made.returncode == 0, made.stderr
        return path

    return make


def copy_of(watch: Watch, path: Path) -> LibraryCopy:
    layouts = watch.source._watchers["nccl"]
    assert isinstance(layouts, NcclLayouts)
    return next(copy for copy in layouts.copies if copy.path == str(path))


def communicator(client: NcclClient, version: str, *, rank: int = RANK, magic: int = SECRET) -> int:
    """An image in the client's memory, every page of it touched."""
    image = client.map(IMAGE)
    client.ask("fill", image, 0, IMAGE)
    client.write(image, [*image_of(version, rank=rank, hash_=HASH, ranks=RANKS, device=DEVICE)])
    client.write(image, [(LISTED[version].hash_at - 8, 8, magic)])
    return image


def make(client: NcclClient, image: int, out: int) -> None:
    """ncclCommInitRank, as if it made the image."""
    client.call("stubNext", image)
    client.call("ncclCommInitRank", out, RANKS, ID, RANK)


def reduce(client: NcclClient, image: int, count: int = 3) -> None:
    client.call("ncclAllReduce", 1, 2, count, 7, 0, image, 5)


def known(one: CommunicatorSeen) -> tuple[int, int, int, int, bool]:
    return one.hash, one.rank, one.ranks, one.device, one.created


@pytest.mark.parametrize("version", LISTED)
def test_the_layout_of_an_unlisted_version_is_found_by_a_communicator_that_is_made(
    nccl: Watch, build: Built, version: str
) -> None:
    library = build(UNLISTED, "-s")
    nccl.source.prepare_file(library)
    with NcclClient(library) as client:
        nccl.observe(client.pid)
        image, out = communicator(client, version), client.map(4096)

        nccl.during(lambda: make(client, image, out))
        copy = copy_of(nccl, library)
        assert (copy.version, copy.source, copy.verified) == (UNLISTED, "calibrated", True)
        assert copy.layout is not None
        found, listed = copy.layout, LISTED[version]
        assert (found.hash_at, found.rank_at, found.ranks_at, found.device_at, found.end_at) == (
            *(listed.hash_at, listed.rank_at, listed.ranks_at, listed.device_at, listed.end_at),
        )
        nccl.during(lambda: reduce(client, image))
        # Reported by its maker, then again with what could be read of it.
        assert [known(one) for one in seen(nccl, client.pid)] == [
            (0, RANK, RANKS, -1, True),
            (HASH, RANK, RANKS, DEVICE, True),
        ]
        made, reduced = calls(nccl, client.pid)
        assert (int(made["communicator"]), int(made["rank"]), int(made["extra"])) == (image, RANK, RANKS)
        assert (int(reduced["hash"]), int(reduced["rank"])) == (HASH, RANK)
        assert reduced["sequence_source"] == SequenceSource.UNKNOWN  # counts are not found so
        # The unique id is a secret: nothing of it is in any record.
        everything = b"".join(item.records.tobytes() for item in nccl.inputs if isinstance(item, Batch))
        assert SECRET.to_bytes(8, "little") not in everything


@pytest.mark.parametrize("version", LISTED)
def test_a_listed_version_is_read_from_the_first_call_on(nccl: Watch, build: Built, version: str) -> None:
    library = build(version)
    with NcclClient(library) as client:
        layout = LISTED[version]
        image, out = communicator(client, version), client.map(4096)
        make(client, image, out)  # before the probes are there
        reduce(client, image)
        nccl.source.prepare_file(library)
        nccl.observe(client.pid)
        count_at = image + layout.sequences_at + 8 * 4 if layout.sequences else 0

        def work() -> None:
            client.call("stubCount", count_at, 0)
            for _ in range(23):
                reduce(client, image)

        nccl.during(work)
        assert copy_of(nccl, library).source == "listed"
        assert [known(one) for one in seen(nccl, client.pid)] == [(HASH, RANK, RANKS, DEVICE, False)]
        records = calls(nccl, client.pid)
        assert {int(record["hash"]) for record in records} == {HASH}
        if layout.sequences:
            assert [int(record["sequence"]) for record in records] == list(range(23))
        wanted = SequenceSource.FUNCTION if layout.sequences else SequenceSource.UNKNOWN
        assert {int(record["sequence_source"]) for record in records} == {wanted}
        assert nccl.losses() == {}


def test_the_source_of_a_sequence_says_what_a_call_was(nccl: Watch, build: Built) -> None:
    version, library = "2.28.9", build("2.28.9")
    layout = LISTED[version]
    nccl.source.prepare_file(library)
    with NcclClient(library) as client:
        nccl.observe(client.pid)
        image, alone = communicator(client, version), communicator(client, version, rank=0)
        client.write(alone, [(layout.ranks_at, 4, 1)])
        count_at, graphs_at = image + layout.sequences_at + 8 * 4, image + layout.graphs_at

        def work() -> None:
            client.call("stubCount", count_at, 0)
            reduce(client, image)
            reduce(client, image, count=0)  # moves nothing
            client.call("stubCount", 0, 0)
            reduce(client, alone)  # has nobody to talk to, and is not counted
            client.call("stubCount", 0, graphs_at)
            reduce(client, image)  # into a graph
            client.call("stubCount", 0, 0)
            reduce(client, image)  # in some way that the library does not count
            client.call("ncclGroupStart")
            reduce(client, image)
            reduce(client, image)
            client.call("ncclGroupEnd")

        nccl.during(work)
        source = SequenceSource
        assert [(int(r["sequence_source"]), int(r["sequence"])) for r in calls(nccl, client.pid)] == [
            (source.FUNCTION, 0),
            (source.CAPTURED, 0),
            (source.UNKNOWN, 0),
            (source.CAPTURED, 1),
            (source.UNKNOWN, 0),
            (source.FUNCTION, 1),  # all members have the number of the first
            (source.FUNCTION, 1),
            (source.UNKNOWN, 2),  # the group: how many were in it
        ]


def test_a_library_without_a_layout_is_refused_not_guessed(nccl: Watch, build: Built) -> None:
    library = build(None, "-s")
    nccl.source.prepare_file(library)
    with NcclClient(library) as client:
        image = communicator(client, "2.28.9")
        nccl.observe(client.pid)

        def work() -> None:
            for _ in range(23):
                reduce(client, image)

        nccl.during(work)
        copy = copy_of(nccl, library)
        assert (copy.version, copy.layout) == (None, None)
        assert [known(one) for one in seen(nccl, client.pid)] == [(0, -1, -1, -1, False)]
        assert {(int(r["hash"]), int(r["rank"]), int(r["device"])) for r in calls(nccl, client.pid)} == {
            (0, -1, -1)
        }
        assert nccl.total("nccl", "communicator_layout_unknown") == 23
        assert nccl.total("nccl", "communicator_version_unknown") == 1


def test_a_table_that_a_communicator_contradicts_is_given_up(nccl: Watch, build: Built) -> None:
    library = build("2.27.5")
    nccl.source.prepare_file(library)
    with NcclClient(library) as client:
        nccl.observe(client.pid)
        image, out = communicator(client, "2.28.9"), client.map(4096)
        nccl.during(lambda: make(client, image, out))
        copy = copy_of(nccl, library)
        assert copy.source == "calibrated"
        assert copy.layout is not None
        assert copy.layout.hash_at == LISTED["2.28.9"].hash_at
        assert nccl.total("nccl", "communicator_layout_contradicted") == 1
        nccl.during(lambda: reduce(client, image))
        assert int(calls(nccl, client.pid)[-1]["hash"]) == HASH


def test_debugging_information_of_an_unlisted_version_is_used(nccl: Watch, build: Built) -> None:
    library = build(UNLISTED, "-g", "-DLAYOUT")
    nccl.source.prepare_file(library)
    until = 0
    while copy_of(nccl, library).layout is None and until < 1500:
        nccl.pump(0.02)
        until += 1
    copy = copy_of(nccl, library)
    assert copy.source == "debug_info"
    assert copy.layout is not None
    hash_at = 8 + 4321 * 8 + 8
    assert (copy.layout.hash_at, copy.layout.rank_at) == (hash_at, hash_at + 8)
    assert (copy.layout.sequences_at, copy.layout.sequences) == (hash_at + 8 + 12 + 100, 5)
    assert copy.layout.begin_magic


def test_a_communicator_that_was_freed_is_counted_and_has_no_hash(nccl: Watch, build: Built) -> None:
    version, library = "2.28.9", build("2.28.9")
    nccl.source.prepare_file(library)
    with NcclClient(library) as client:
        nccl.observe(client.pid)
        image, half = communicator(client, version), communicator(client, version)

        def work() -> None:
            reduce(client, image)
            reduce(client, half)
            client.ask("unmap", image, IMAGE)
            client.ask("unmap", half + (1 << 20), 1 << 20)  # where its end, hash and ranks are
            reduce(client, image)
            reduce(client, half)

        nccl.during(work)
        assert [int(record["hash"]) for record in calls(nccl, client.pid)] == [HASH, HASH, 0, 0]
        assert nccl.losses() == {("nccl", "communicator_unreadable"): 2}


def test_an_address_that_comes_again_is_another_communicator(nccl: Watch, build: Built) -> None:
    version, library = "2.28.9", build("2.28.9")
    layout = LISTED[version]
    nccl.source.prepare_file(library)
    with NcclClient(library) as client:
        nccl.observe(client.pid)
        image, out = communicator(client, version), client.map(4096)

        def work() -> None:
            make(client, image, out)
            reduce(client, image)
            client.call("ncclCommDestroy", image)
            reduce(client, image)  # the same again: it is new all the same
            client.write(image, [(layout.hash_at, 8, HASH + 1), (layout.rank_at, 4, 2)])
            reduce(client, image)
            client.write(image, [(layout.hash_at, 8, HASH + 2)])  # without a word
            reduce(client, image)

        nccl.during(work)
        reported = [(one.hash, one.rank, one.created, one.ended) for one in seen(nccl, client.pid)]
        assert reported == [
            (HASH, RANK, True, False),
            (HASH, RANK, True, True),
            (HASH, RANK, False, False),
            (HASH + 1, 2, False, False),
            (HASH + 2, 2, False, False),
        ]
        # Of the call that made it only: what is made meanwhile is made for it.
        assert [one.duration_ns > 0 for one in seen(nccl, client.pid)] == [True, *[False] * 4]
        assert nccl.losses() == {}


def test_communicators_made_in_a_group_are_reported_at_its_end(nccl: Watch, build: Built) -> None:
    version, library = "2.28.9", build("2.28.9")
    nccl.source.prepare_file(library)
    with NcclClient(library) as client:
        nccl.observe(client.pid)
        parent = communicator(client, version)
        image, out = communicator(client, version), client.map(4096)

        def work() -> None:
            client.call("ncclGroupStart")
            client.call("stubNext", image)
            client.call("ncclCommSplit", parent, 1, 0, out, 0)
            client.write(out, [(0, 8, 0)])  # not there before the group ends
            client.write(out, [(0, 8, image)])
            client.call("ncclGroupEnd")
            client.call("stubNext", 0)
            client.call("ncclCommSplit", parent, -1, 0, out, 0)  # no part in it

        nccl.during(work)
        reported = [
            (one.address, one.parent, one.created, one.duration_ns > 0) for one in seen(nccl, client.pid)
        ]
        assert reported == [(parent, 0, False, False), (image, parent, True, True)]


def test_all_communicators_of_a_process_are_reported_at_once(nccl: Watch, build: Built) -> None:
    library = build("2.28.9")
    nccl.source.prepare_file(library)
    with NcclClient(library) as client:
        nccl.observe(client.pid)
        image, out = communicator(client, "2.28.9"), client.map(4096)

        def work() -> None:
            client.call("stubNext", image)
            client.call("ncclCommInitAll", out, 19, 0)

        nccl.during(work)
        assert len(seen(nccl, client.pid)) == 16
        assert nccl.losses() == {("nccl", "communicators_cut"): 3}
        (made,) = calls(nccl, client.pid)
        assert (int(made["extra"]), int(made["communicator"])) == (19, image)


SOUND: Final = LISTED["2.28.9"]


@pytest.mark.parametrize(
    "word",
    [
        pytest.param((0, 8, MAGIC + 1), id="first word"),
        pytest.param((SOUND.end_at, 8, 0), id="last word"),
        pytest.param((SOUND.hash_at, 8, 0), id="no hash"),
        pytest.param((SOUND.rank_at, 4, RANKS), id="rank beyond ranks"),
        pytest.param((SOUND.rank_at, 4, -1), id="rank below 0"),
        pytest.param((SOUND.ranks_at, 4, 0), id="no ranks"),
        pytest.param((SOUND.ranks_at, 4, 1 << 30), id="too many ranks"),
        pytest.param((SOUND.device_at, 4, -1), id="no device"),
    ],
)
def test_what_reads_as_no_communicator_does_has_no_hash(
    nccl: Watch, build: Built, word: tuple[int, int, int]
) -> None:
    library = build("2.28.9")
    nccl.source.prepare_file(library)
    with NcclClient(library) as client:
        nccl.observe(client.pid)
        image = communicator(client, "2.28.9")
        client.write(image, [word])
        nccl.during(lambda: reduce(client, image))
        assert [(int(r["hash"]), int(r["rank"])) for r in calls(nccl, client.pid)] == [(0, -1)]
        assert nccl.losses() == {("nccl", "communicator_implausible"): 1}


def test_the_magic_of_a_communicator_is_not_mistaken(nccl: Watch, build: Built) -> None:
    """Zeroed and random memory is no communicator, whatever the layout says."""
    library = build("2.28.9")
    nccl.source.prepare_file(library)
    noise = np.random.default_rng(6).integers(0, 1 << 32, 64, dtype=np.uint64)
    with NcclClient(library) as client:
        nccl.observe(client.pid)
        layout = LISTED["2.28.9"]
        image = client.map(IMAGE)
        client.ask("fill", image, 0, IMAGE)

        def work() -> None:
            for word in noise.tolist():
                client.write(image, [(0, 8, MAGIC), (layout.hash_at, 8, word), (layout.ranks_at, 4, word)])
                reduce(client, image)

        nccl.during(work)
        assert {int(record["hash"]) for record in calls(nccl, client.pid)} == {0}
        assert nccl.losses() == {("nccl", "communicator_implausible"): len(noise)}
