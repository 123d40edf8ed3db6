"""Entries paired with returns (bpf/lib/calls.h), in a family that is nothing else."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from otelgpu.engine.call_families import call_families, family_of
from otelgpu.families.profiles.decode import ProfileDecoder
from otelgpu.families.profiles.discover import programs as profiles
from otelgpu.kernel.attach import attach_hooks, hooks_of
from otelgpu.kernel.call_stacks import PLACES
from otelgpu.kernel.libbpf import detach_all
from otelgpu.kernel.loader import Image, LoadedFamily, load_family, read_image
from otelgpu.kernel.uprobe_links import UprobeLinks, uprobe_links
from otelgpu.model.profiling import ProfileSettings
from tests.kernel.observing import compiled_image
from tests.rig import missing_compiler

SOURCE = Path(__file__).parent / "data" / "pairing.c"
Call = tuple[str, str]  # function, and the one that it was made inside of
CALLS: dict[Call, int] = {
    ("outer", ""): 7,
    ("inner", "outer"): 14,
    ("jumps", ""): 5,
    ("jumped_to", "jumps"): 5,
    ("inner", ""): 3,  # after what was left, and deeper in the stack
    ("recurses", ""): 1,
    ("recurses", "recurses"): 3,
}
RECURSIONS = 6
WITH_STACKS = {"stack_kinds": 1 << 1}  # PAIRING_CALL


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return compiled_image("pairing", tmp_path_factory.mktemp("bpf"), family="pairing")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if tool := missing_compiler():
        pytest.skip(f"needs {tool}")
    made = tmp_path_factory.mktemp("pairing") / "program"
    options = ("-O1", "-Wall", "-Wextra", "-Werror", "-fno-optimize-sibling-calls", "-fcf-protection=none")
    subprocess.run(["gcc", *options, "-no-pie", "-o", made, SOURCE], check=True)
    return made


def offsets(program: Path) -> dict[str, int]:
    """Function → its place in the file."""
    with program.open("rb") as file:
        elf = ELFFile(file)
        table = elf.get_section_by_name(".symtab")
        found: dict[str, int] = {}
        for symbol in table.iter_symbols():
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_value"]:
                found[symbol.name] = next(elf.address_offsets(symbol["st_value"]))
        return found


class Paired:
    """What a run of the program came to."""

    def __init__(self, loaded: LoadedFamily) -> None:
        names = {v: k.removeprefix("API_") for k, v in loaded.image.btf.enumerators("pairing_api").items()}
        names[0] = ""
        self.records = [record for batch in loaded.drain() for record in batch.records]
        self.values = [
            ((names[int(r["api"])], names[int(r["inside"])]), int(r["argument"]), int(r["status"]))
            for r in self.records
        ]
        self.calls = Counter(call for call, _, _ in self.values)
        self.counters = {name: count for name, count in loaded.counters().items() if count}
        self.counters.pop("submitted", None)


def run(
    image: Image,
    program: Path,
    *,
    sessions: bool = False,
    returns: bool = True,
    shared: LoadedFamily | None = None,
) -> Paired:
    """``shared``: as of a session, in which outermost calls have stacks."""
    if sessions and uprobe_links() < UprobeLinks.SESSION:
        pytest.skip("this kernel has no uprobe sessions")
    constants = {"scope_all": 1, "entry_only": int(not returns)}
    loaded = load_family(
        image,
        constants=constants if shared is None else constants | WITH_STACKS,
        ring_bytes=1 << 16,
        sessions=sessions,
        returns=returns,
        shared=shared,
    )
    try:
        links, refused = attach_hooks(hooks_of(loaded), str(program), offsets(program), with_returns=returns)
        assert links and not refused
        done = subprocess.run([program], input="\n", capture_output=True, text=True, check=False)
        assert done.returncode == 0
        detach_all(links)
        return Paired(loaded)
    finally:
        loaded.close()


@pytest.fixture(params=[True, False], ids=["sessions", "pairs"])
def paired(request: pytest.FixtureRequest, image: Image, program: Path) -> Iterator[Paired]:
    yield run(image, program, sessions=request.param)


def test_each_call_is_paired_with_its_return_inside_the_one_that_made_it(paired: Paired) -> None:
    assert paired.calls == CALLS
    assert all(record["head"]["returned"] for record in paired.records)
    results = {
        "inner": lambda argument: argument + 1,
        "outer": lambda argument: 2 * (argument + 1),
        "jumps": lambda argument: argument + 2,
        "jumped_to": lambda argument: argument + 2,
        "recurses": lambda argument: argument,
    }
    for (name, _), argument, status in paired.values:
        assert status == results[name](argument)


def test_what_is_left_and_what_is_too_deep_is_counted(paired: Paired) -> None:
    assert paired.counters == {
        "call_abandoned": 3,
        "calls_nested_too_deep": RECURSIONS - 4,
        "recursions": RECURSIONS - 1,  # a reason of the family's own
    }


def test_without_return_probes_only_what_is_known_to_call_another_contains_it(
    image: Image, program: Path
) -> None:
    paired = run(image, program, returns=False)
    assert paired.calls == {
        ("outer", ""): 7,
        ("inner", "outer"): 14,
        ("jumps", ""): 5,
        ("jumped_to", ""): 5,
        ("leaves", ""): 3,
        ("inner", ""): 3,
        ("recurses", ""): RECURSIONS,
    }
    assert not any(record["head"]["returned"] for record in paired.records)
    assert paired.counters == {}


@pytest.mark.parametrize("sessions", [True, False], ids=["sessions", "pairs"])
@pytest.mark.parametrize("returns", [True, False], ids=["returns", "entries"])
def test_a_family_that_no_other_knows_has_stacks_of_its_outermost_calls(
    image: Image, program: Path, sessions: bool, returns: bool
) -> None:
    constants = {"scope_all": 1, **WITH_STACKS}
    with ExitStack() as stack:
        process = load_family(read_image("process"), constants=constants, ring_bytes=4096)
        stack.callback(process.close)
        profile = load_family(
            read_image("profile"),
            constants={**profiles.constants(ProfileSettings()), **constants},
            ring_bytes=1 << 20,
            shared=process,
            sessions=True,
            wanted=lambda name: name in PLACES,
        )
        stack.callback(profile.close)
        paired = run(image, program, sessions=sessions and returns, returns=returns, shared=process)
        samples = np.concatenate([ProfileDecoder().samples(batch) for batch in profile.drain()])

    numbers = call_families({"pairing": image.btf, "profile": read_image("profile").btf})
    assert set(family_of(samples).tolist()) == {numbers["pairing"]} == {15}
    assert samples["stack"].all()
    reported = Counter((int(s["other"]) & 0xFFFF, int(s["time_ns"])) for s in samples)
    outermost = Counter((int(r["api"]), int(r["head"]["time_ns"])) for r in paired.records if not r["inside"])
    left = image.btf.enumerators("pairing_api")["API_leaves"] if returns else None
    assert {call: count for call, count in reported.items() if call[0] != left} == outermost
