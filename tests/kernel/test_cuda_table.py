"""Each way of reading a call's arguments, against CUDA's own headers: a record holds what was passed.

A program compiled with the real prototypes (data/cuda_calls.c) calls libraries that are made here from the table
and do nothing; it says what each record must hold.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otelgpu.model.operations import DEVICE_KINDS, OperationKind
from tests.kernel.observing import Watch
from tests.rig import cuda_include_flags, missing_compiler
from tools.cuda_calls import Call, calls

SOURCE = Path(__file__).parent / "data" / "cuda_calls.c"
GIVEN = 0xABC00


def stub(call: Call) -> str:
    """A function that writes what it gives, and succeeds."""
    parameters = ", ".join(f"unsigned long *a{n}" for n in range(1, 7))
    results = [int(place.split()[2]) for place in call.slots.values() if place.endswith("on return")]
    body = "".join(f"if (a{n}) *a{n} = {GIVEN + n}; " for n in results)
    used = " ".join(f"(void)a{n};" for n in range(1, 7))
    return f"int {call.symbol}({parameters}) {{ {used} {body}return 0; }}\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if tool := missing_compiler():
        pytest.skip(f"needs {tool}")
    folder = tmp_path_factory.mktemp("table")
    libraries = {"libcudart": "libcudart.so.12", "libcuda": "libcuda.so.1"}
    for library_name, name in libraries.items():
        source = folder / f"{library_name}.c"
        source.write_text("".join(stub(call) for call in calls() if call.library == library_name))
        options = ("-w", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{name}")
        subprocess.run(["gcc", *options, "-o", folder / name, source], check=True)
    made = [str(folder / name) for name in libraries.values()]
    binary = folder / "program"
    warnings = (
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-missing-field-initializers",
        "-Wno-deprecated-declarations",
    )
    subprocess.run(
        ["gcc", "-O1", *warnings, *cuda_include_flags(), "-o", binary, SOURCE, *made, f"-Wl,-rpath,{folder}"],
        check=True,
    )
    return binary


def observed(watching: Watch, program: Path) -> Iterator[tuple[dict[str, Any], np.void]]:
    """What the program says of each call, and its record."""
    process = subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    watching.observe(process.pid)
    said, _ = watching.during(lambda: process.communicate("\n", timeout=30))
    assert process.returncode == 0
    names = watching.api_names()
    records = [r for r in watching.records() if r["head"]["kind"] <= DEVICE_KINDS[-1]]
    records.sort(key=lambda record: int(record["head"]["time_ns"]))
    following = iter(records)
    for line in said.splitlines():
        expected = json.loads(line)
        yield expected, next(r for r in following if names[int(r["api"])] == expected["api"])


@pytest.mark.parametrize("sessions", [True, False])
def test_a_record_holds_what_the_call_was_given_and_gave(
    watch: Callable[..., Watch], program: Path, sessions: bool
) -> None:
    seen = 0
    for expected, record in observed(watch(sessions=sessions), program):
        function, seen = expected.pop("api"), seen + 1
        found = {name: (record["head"] if name == "returned" else record)[name].tolist() for name in expected}
        assert found == expected, function
        assert record["status"] == 0
    assert seen > 80


def test_the_site_of_an_allocation_is_in_the_program(watch: Callable[..., Watch], program: Path) -> None:
    watching = watch()
    sites = [
        int(r["caller"])
        for e, r in observed(watching, program)
        if r["head"]["kind"] == OperationKind.ALLOCATION
    ]
    assert len(set(sites)) == len(sites) > 10
    assert max(sites) - min(sites) < program.stat().st_size
