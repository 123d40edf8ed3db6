"""A user's probes on a running program: every hit, its values, and nothing where there is no place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from otelgpu.errors import OtelgpuError
from otelgpu.families.user_probes import family_of
from otelgpu.families.user_probes.discover.watcher import UserProbes
from otelgpu.families.user_probes.probe_file import parse
from otelgpu.kernel.features import has_kprobes
from otelgpu.kernel.loader import LoadedFamily, load_family, read_image
from otelgpu.kernel.scope import Scope, put_process
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import Operations, concatenate
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.samples import SampleKind
from otelgpu.model.settings import Settings, SignalSettings
from otelgpu.sources.discoveries import observed
from otelgpu.sources.live import LiveSettings, LiveSource
from tests.kernel.observing import wait_until
from tests.rig import RigError
from tests.rig.kernel_headers import kernel_headers

pytestmark = pytest.mark.kernel
PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).parent / "data" / "user_probes.c"
    made = tmp_path_factory.mktemp("probes") / "user_probes"
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", made, source], check=True)
    return made


class Session:
    """Probes of one text on one process; the hits as operations."""

    def __init__(self, text: str, program: tuple[str, str] | None = None) -> None:
        self.probes = parse(text, "p.json")
        self.loaded: LoadedFamily = load_family(read_image("probe"), constants={}, ring_bytes=1 << 20)
        try:
            self.placer = UserProbes(self.loaded, self.probes, with_returns=True, program=program)
        except BaseException:
            self.loaded.close()
            raise

    def close(self) -> None:
        self.placer.close()
        self.loaded.close()

    def run(self, command: Sequence[str | Path], text: bytes = b"x") -> str:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert put_process(self.loaded, process.pid)
            self.placer.mapped(process.pid)
            out, _ = process.communicate(text, timeout=20)
        assert process.returncode == 0
        return out.decode()

    def hits(self) -> dict[str, Operations]:
        operations = family_of(self.probes).operations
        assert operations is not None
        decoder = operations.decoder(self.loaded.image.btf, SignalSettings())
        batches = [*self.loaded.drain(), *self.placer.collect(0)]
        rows = concatenate([decoder.decode(batch) for batch in batches])  # type: ignore[arg-type]
        return {probe.name: rows[rows["api"] == probe.number] for probe in self.probes}


@contextmanager
def probing(text: str, program: tuple[str, str] | None = None) -> Iterator[Session]:
    session = Session(text, program)
    try:
        yield session
    finally:
        session.close()


def test_every_call_is_a_hit_with_its_values(program: Path) -> None:
    text = """{"probes": [
      {"library": "user_probes", "symbols": ["work"], "arguments": [
        {"name": "a", "from": "arg1", "type": "s32"}, {"name": "b", "from": "arg2", "type": "u16"},
        {"name": "gave", "from": "result", "type": "s64"}, {"name": "d", "from": "arg4"}]},
      {"name": "entry", "library": "/*/user_probes", "symbols": ["work"], "output": {"metric": {"name": "m"}}},
      {"library": "user_probes", "symbols": ["deep"]},
      {"library": "user_probes", "symbols": ["missing"]}
    ]}"""
    with probing(text) as session:
        reported = [int(line) for line in session.run([program]).splitlines()]
        hits = session.hits()
        assert [probe.name for probe in session.placer.unplaced] == ["missing"]
        counters = session.loaded.counters()
    work = hits["work"]
    assert work["handle"].astype(np.int64).tolist() == [-number for number in range(13)]
    assert work["other"].tolist() == list(range(70, 83))
    assert work["size_bytes"].astype(np.int64).tolist() == reported
    assert work["stream"].tolist() == [1 << 40] * 13
    assert work["returned"].all() and (work["duration_ns"] > 0).all()
    assert len(hits["entry"]) == 13 and not hits["entry"]["returned"].any()
    deep = hits["deep"]
    assert len(deep) == 4
    order = np.argsort(deep["start_ns"])
    ends = (deep["start_ns"] + deep["duration_ns"])[order]
    assert (np.diff(ends.astype(np.int64)) < 0).all()  # the outermost call ends last
    assert counters["submitted"] == 13 + 13 + 4
    assert counters["call_abandoned"] == counters["return_without_entry"] == 0


def test_a_tracepoint_reports_its_fields(program: Path) -> None:
    text = """{"probes": [{"tracepoint": "sched/sched_process_exit",
               "arguments": [{"name": "pid", "from": "pid"}, {"name": "prio", "from": "prio"}]}]}"""
    with probing(text) as session:
        session.run([program])
        (hits,) = session.hits().values()
    assert hits["handle"].tolist() == hits["tid"].tolist()
    assert hits["other"].tolist() == [
        120 + os.getpriority(os.PRIO_PROCESS, 0)
    ]  # MAX_RT_PRIO + 20 + what nice gave


def test_usdt_of_an_interpreter(program: Path) -> None:
    text = """{"probes": [{"library": "python3*", "usdt": "python:gc__start",
               "arguments": [{"name": "generation", "from": "arg1"}]}]}"""
    code = "import gc, sys; gc.disable(); sys.stdin.read(1); [gc.collect(n % 3) for n in range(13)]"
    with probing(text) as session:
        session.run([PYTHON, "-c", code])
        (hits,) = session.hits().values()
        unplaced = session.placer.unplaced
    if unplaced:
        pytest.skip(f"{PYTHON} was built without USDT: its file has no note of python:gc__start")
    # The interpreter may collect while it starts, and does when it ends.
    generations = "".join(map(str, hits["handle"].tolist()))
    assert "0120120120120" in generations


def test_from_one_usdt_until_another_takes_its_time_and_short_ones_are_no_hits(program: Path) -> None:
    """Full collections of 200,000 lists take milliseconds; of what is young there is nothing to collect."""
    collection = """"library": "python3*", "usdt": "python:gc__start", "until": "python:gc__done",
               "arguments": [{"name": "generation", "from": "arg1"}]"""
    text = f"""{{"probes": [{{"name": "any", {collection}}}, {{"name": "long", {collection}, "least_us": 2000}}]}}"""
    code = (
        "import gc, sys, time; gc.disable(); sys.stdin.read(1); kept = [[] for _ in range(200_000)]; gc.collect()\n"
        "for n in range(13): gc.collect(2 * (n % 2)); time.sleep(0.002)\n"
        "del kept"
    )
    with probing(text) as session:
        session.run([PYTHON, "-c", code])
        hits = session.hits()
        unplaced = session.placer.unplaced
        counters = session.loaded.counters()
    if unplaced:
        pytest.skip(f"{PYTHON} was built without USDT: its file has no note of python:gc__start")
    every, long = hits["any"], hits["long"]
    assert "0202020202020" in "".join(map(str, every["handle"].tolist()))
    assert every["returned"].all() and (every["duration_ns"] > 0).all()
    full = every[every["handle"] == 2]
    assert 7 <= len(long) <= len(full)
    assert set(long["handle"].tolist()) == {2}
    assert long["duration_ns"].min() >= 2_000_000
    assert counters["call_abandoned"] == counters["return_without_entry"] == 0


def test_what_does_not_end_where_it_says_is_not_placed(program: Path) -> None:
    text = """{"probes": [{"library": "python3*", "usdt": "python:gc__start", "until": "python:no__such"}]}"""
    with probing(text) as session:
        session.run([PYTHON, "-c", "import sys; sys.stdin.read(1)"])
        assert [each.name for each in session.placer.unplaced] == ["python:gc__start"]
        (hits,) = session.hits().values()
    assert len(hits) == 0


def test_what_the_kernel_does_not_have_is_reported_with_its_line() -> None:
    for text, said in (
        ('{"probes": [\n{"tracepoint": "sched/none"}]}', "p.json:2: tracepoint sched/none cannot be probed"),
        (
            '{"probes": [{"tracepoint": "sched/sched_switch", "arguments": [{"name": "x", "from": "y"}]}]}',
            "p.json:1: tracepoint sched/sched_switch has no number 'y'; it has: prev_pid",
        ),
        ('["no_such_function_of_the_kernel"]', "no_such_function_of_the_kernel cannot be probed"),
    ):
        with pytest.raises(OtelgpuError, match=r"^p\.json") as raised:
            Session(text).close()
        assert said in str(raised.value)
    if not has_kprobes():
        with pytest.raises(OtelgpuError, match="this kernel allows no kprobes"):
            Session('["vfs_read"]').close()


def test_other_processes_are_left_alone(program: Path) -> None:
    with probing('{"user_probes": ["work"]}') as session:
        with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            maps = Path(f"/proc/{process.pid}/maps")
            wait_until(lambda: str(program) in maps.read_text(), "exec has mapped the program")
            session.placer.mapped(process.pid)  # probed, and not in scope
            process.communicate(b"x", timeout=20)
        session.run([sys.executable, "-c", "input()"], b"\n")
        assert not len(session.hits()["work"])
        assert session.placer.unplaced == []


OWN = """
BPF_HASH(seen, u32, u64);

int on_work(struct pt_regs *ctx)
{
	u32 key = 0;
	u64 none = 0, *calls = seen.lookup_or_try_init(&key, &none);

	if (calls && (*calls)++ % 2 == 0)
		otelgpu_hit(ctx, PROBE_work, PT_REGS_PARM2(ctx), *calls, 0, 0);
	return 0;
}
"""
OWN_PROBES = """{"probes": [{"library": "user_probes", "symbols": ["work"], "program": "on_work",
                 "arguments": [{"name": "b", "from": "arg1"}, {"name": "calls", "from": "arg2"}]}]}"""


@pytest.fixture
def headers() -> Iterator[None]:
    try:
        with kernel_headers():
            yield
    except RigError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("headers")
def test_a_program_of_the_users_own_decides_what_is_a_hit(program: Path) -> None:
    with probing(OWN_PROBES, (OWN, "own.c")) as session:
        session.run([program])
        (hits,) = session.hits().values()
        assert session.placer.unplaced == []
    assert hits["handle"].tolist() == list(range(70, 83, 2))
    assert hits["other"].tolist() == list(range(1, 14, 2))
    assert (hits["tgid"] > 0).all() and (hits["start_ns"] > 0).all()


@pytest.mark.usefixtures("headers")
def test_what_bcc_refuses_is_reported() -> None:
    with pytest.raises(OtelgpuError, match=r"own\.c cannot be compiled"):
        Session(OWN_PROBES, ("int on_work(void *ctx) { return nothing; }", "own.c")).close()
    with pytest.raises(OtelgpuError, match=r"own\.c: on_work cannot be loaded"):
        Session(OWN_PROBES, ("int other(void *ctx) { return 0; }", "own.c")).close()


def test_a_function_without_its_program_is_reported_with_its_line() -> None:
    with pytest.raises(
        OtelgpuError, match=r"p\.json:1: the function on_work is in no program\ngive the file"
    ):
        Session(OWN_PROBES).close()


def test_hits_are_samples_of_a_profile(program: Path, tmp_path: Path) -> None:
    probes = tmp_path / "p.json"
    probes.write_text('{"probes": [{"library": "user_probes", "symbols": ["work"], "output": "profile"}]}')
    asked = Settings(
        {
            "profiling": ProfileSettings(kinds=frozenset({ProfileKind.CPU})),
            "probe_file": str(probes),
        }
    )
    settings = LiveSettings(return_probes=True, families=asked)
    source = LiveSource(observed(("profile",), asked), Scope(), settings)
    with closing(source):
        with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            source.observe(process.pid)
            process.communicate(b"x", timeout=20)
        batches = [each for each in source.collect() if isinstance(each, Batch)]
    samples = np.concatenate([each.records for each in batches if each.kind == "profile_sample"])
    hits = samples[samples["head"]["kind"] == SampleKind.USER]
    assert (len(hits), set(hits["other"].tolist()), set(hits["value"].tolist())) == (13, {1}, {1})
    assert len(set(hits["stack"].tolist())) == 1 and hits["stack"].all()
