"""A job on CPUs, observed: each collective and each stretch of its threads once, and the rank that is late."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from otelgpu.cli.rank_reports import look
from otelgpu.families.gloo.decode import GlooDecoder, stretches
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch, LossCounted
from otelgpu.model.operations import OperationKind, Operations, SequenceSource, concatenate
from otelgpu.model.stretches import Stretch
from otelgpu.sources.capture import CaptureReader
from tests.kernel.observing import OTELGPU
from tests.rig import missing_compiler
from tests.rig.gloo_ranks import run_gloo_ranks
from tests.rig.priority import FIRST

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=f"needs {missing_compiler()}")

STEPS = 23
LEAST_SHARE = 0.15
"""Of the time of a step; a rank that is late here is so for two fifths of it."""
BYTES = {"allreduce": {4000, 4}, "broadcast": {56}, "allgather": {48}, "barrier": {0}}
NAMES = {"wait": Stretch.COMMUNICATION_WAIT, "data_loader": Stretch.DATA_LOADER, "backward": Stretch.BACKWARD}


def test_every_collective_and_stretch_is_recorded_once(kernel: None, tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    prefix = (OTELGPU, "record", "--hold-on-load", "--families=gloo", f"-o{capture}", "--")
    truth = run_gloo_ranks(tmp_path, [[f"--steps={STEPS}"]] * 3, prefix=prefix)
    decoder = GlooDecoder(read_image("gloo").btf)
    batches = [each for each in CaptureReader(capture) if isinstance(each, Batch) and each.family == "gloo"]
    calls = concatenate([decoder.decode(batch) for batch in batches])
    seen = concatenate([stretches(batch) for batch in batches])
    assert len(set(calls["tgid"].tolist())) == len(truth) == 3
    for tgid in set(calls["tgid"].tolist()):
        mine = calls.compress(calls["tgid"] == tgid)
        (rank,) = set(mine["rank"].tolist())
        true = {NAMES.get(name, name): count for name, count in truth[rank]["calls"].items()}
        assert counted(mine, decoder) == {name: count for name, count in true.items() if name in BYTES}
        assert mine["returned"].all() and (mine["sequence_source"] == SequenceSource.CALL).all()
        assert sorted(mine["sequence"].tolist()) == list(range(len(mine)))
        threads = set(mine["tid"].tolist())
        assert len(threads) > 1, "collectives run beside the main thread"
        said = Counter(Stretch(api) for api in seen["api"][seen["tgid"] == tgid].tolist())
        assert said == {name: count for name, count in true.items() if name in set(Stretch)}
        assert set(seen["tid"][seen["tgid"] == tgid].tolist()) == {tgid}
    of_call = defaultdict(set)
    for api, size in zip(calls["api"].tolist(), calls["size_bytes"].tolist(), strict=True):
        of_call[decoder.apis[api].removeprefix("gloo::")].add(size)
    assert of_call == BYTES
    assert set(calls["peer"].tolist()) == {-1, 2}
    loads = seen.compress(seen["api"] == Stretch.DATA_LOADER)
    assert (loads["duration_ns"] >= 500_000).all()


def test_sends_and_receives_are_recorded_when_they_were_waited_for(kernel: None, tmp_path: Path) -> None:
    """Both sides number them alike; not those with a tag, nor once a rank received from any."""
    capture = tmp_path / "capture"
    prefix = (OTELGPU, "record", "--hold-on-load", "--families=gloo", f"-o{capture}", "--")
    truth = run_gloo_ranks(tmp_path, [["--pipeline=1", f"--steps={STEPS}"]] * 3, prefix=prefix)
    decoder = GlooDecoder(read_image("gloo").btf)
    batches = [each for each in CaptureReader(capture) if isinstance(each, Batch) and each.family == "gloo"]
    calls = concatenate([decoder.decode(batch) for batch in batches])
    assert set(calls["kind"].tolist()) == {OperationKind.POINT_TO_POINT} and calls["returned"].all()
    numbers = defaultdict(list)
    for rank, said in enumerate(truth):
        mine = calls.compress(calls["rank"] == rank)
        assert counted(mine, decoder) == {name: said["calls"][name] for name in ("send", "recv")}
        for row in mine:
            name = decoder.apis[int(row["api"])].removeprefix("gloo::")
            known = row["sequence_source"] == SequenceSource.CALL
            numbers[name, rank, int(row["peer"])].append(int(row["sequence"]) if known else None)
    steps = list(range(STEPS))
    otherwise = [STEPS, STEPS + 1, None]
    assert numbers.pop(("recv", 1, -1)) == [None]
    assert numbers == {
        ("send", 0, 1): [*steps, *otherwise, STEPS + 2, STEPS + 3],
        ("recv", 1, 0): [*steps, STEPS + 1, STEPS, None, None],
        **{("send", 1, peer): steps for peer in (0, 2)},
        **{("recv", rank, 1): steps for rank in (0, 2)},
        **{("send", 2, 1): steps, ("recv", 1, 2): steps},
    }


def test_a_rank_that_cannot_be_is_not_believed(kernel: None, tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    prefix = (OTELGPU, "record", "--hold-on-load", "--families=gloo", f"-o{capture}", "--")
    (truth,) = run_gloo_ranks(tmp_path, [["--steps=3"]], prefix=prefix, first=9)  # of one
    items = list(CaptureReader(capture))
    decoder = GlooDecoder(read_image("gloo").btf)
    calls = concatenate(
        [decoder.decode(item) for item in items if isinstance(item, Batch) and item.family == "gloo"]
    )
    assert len(calls) == sum(count for name, count in truth["calls"].items() if name in BYTES)
    assert set(calls["rank"].tolist()) == {-1}
    assert set(calls["sequence_source"].tolist()) == {SequenceSource.UNKNOWN}
    lost = {item.reason: item.count for item in items if isinstance(item, LossCounted)}
    assert lost["communicator_implausible"] == len(calls)


def counted(rows: Operations, decoder: GlooDecoder) -> dict[str, int]:
    """Calls by their names: several functions may have one."""
    return Counter(decoder.apis[api].removeprefix("gloo::") for api in rows["api"].tolist())


@pytest.mark.parametrize(
    ("late", "cause"),
    [({"late-us": 16000}, "host"), ({"load-us": 24000}, "input"), ({}, "")],
    ids=["host", "input", "healthy"],
)
def test_the_late_rank_is_found_and_none_in_a_healthy_job(
    kernel: None, tmp_path: Path, late: dict[str, int], cause: str
) -> None:
    lines, tables = tmp_path / "spans.jsonl", tmp_path / "tables"
    usual = {"steps": 150, "load-us": 8000, "forward-us": 8000}
    options = [[f"--{name}={value}" for name, value in each.items()] for each in (usual, usual | late, usual)]
    # Whom others keep from computing is late.
    prefix = (*FIRST, OTELGPU, "run", f"--export=file:{lines}", f"--export=parquet:{tables}", "--")
    run_gloo_ranks(tmp_path, options, prefix=prefix)
    for path in (lines, tables):
        _, report, *_ = look([str(path)], None, None, None)
        assert report.input.steps > 60
        # Whom others keep from computing loses a few percent now and then: that is so.
        found = [each for each in report.verdicts if each.cost and each.cost.share >= LEAST_SHARE]
        said = [(each.klass, list(each.ranks)) for each in found]
        assert said == ([("slow_worker", [1])] if cause else []), report
        assert {each.cause for each in found} <= {cause, "mixed"}  # where others take the processors
