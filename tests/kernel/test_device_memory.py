"""`diagnose memory` on live programs, whose leak, failure or category is known, on the fake runtime; and the events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from otelgpu.diagnose.memory.categories import ACTIVATIONS, CACHE, KV_CACHE, OPTIMIZER, WEIGHTS
from otelgpu.diagnose.memory.verdicts import GROWTH, OUT_OF_MEMORY
from otelgpu.model import memory_failures as names
from otelgpu.model.events import Event
from otelgpu.otlp_json.log_reader import read_events
from otelgpu.otlp_json.reader import Reader
from tests.gallery import memory as gallery
from tests.gallery.memory_programs import MIB, PROGRAMS
from tests.kernel.observing import OTELGPU
from tests.rig import ROOT, missing_compiler
from tests.rig.fakes import BUILD
from tests.rig.tensor_program import tensor_command
from tests.unit.families.gpu.devices.nvml_script import Script

GIB = 1 << 30
ENVIRON = {"PYTHONPATH": str(ROOT), "FAKE_CUDART_MEMORY_BYTES": str(GIB)}


def program(name: str) -> list[str]:
    return [sys.executable, "-m", "tests.gallery.memory_programs", name]


def otelgpu(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [OTELGPU, *arguments],
        cwd=ROOT,
        env={**os.environ, **ENVIRON, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The document, behind what the program itself wrote."""
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return found


def diagnosed(name: str, **environ: str) -> dict[str, Any]:
    return report_of(otelgpu("diagnose", "memory", "--json", "--", *program(name), **environ))


def categories(held: Mapping[str, Any]) -> dict[str, int]:
    assert (
        sum(each["bytes"] for each in held["categories"]) == held["bytes"] == held["ledger"] + held["older"]
    )
    return {each["category"]: each["bytes"] // MIB for each in held["categories"]}


def test_a_leak_is_named_with_its_line_and_rate() -> None:
    report = diagnosed("leak")
    (verdict,) = report["verdicts"]
    assert verdict["cause"] == GROWTH
    assert "remember (memory_programs.py:" in verdict["python"][1]
    assert verdict["bytes"] > 100 * MIB and 10 * MIB < verdict["bytes_per_s"] < 60 * MIB
    assert report["devices"][0]["now"]["when"] == "exit"


@pytest.mark.parametrize("name", ["unbounded_cache", "crowded", "cleared"])
def test_a_program_of_the_gallery_is_named_as_its_label_says(name: str) -> None:
    assert gallery.faults(gallery.CASES[name], gallery.diagnose(name)) == []


def test_the_gallery_has_a_label_for_each_of_its_programs() -> None:
    assert gallery.CASES.keys() == PROGRAMS.keys()


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("healthy", {WEIGHTS: 400}),
        ("server", {WEIGHTS: 160, KV_CACHE: 500}),
        ("training", {WEIGHTS: 160, OPTIMIZER: 320, ACTIVATIONS: 80}),
    ],
)
def test_nothing_is_said_of_the_healthy_and_their_memory_has_its_categories(
    name: str, peak: Mapping[str, int]
) -> None:
    report = diagnosed(name)
    assert report["verdicts"] == []
    (device,) = report["devices"]
    found = categories(device["peak"])
    categories(device["now"])
    # A look may fall between what is freed and what is allocated anew; weights and such are exact.
    passing = {"unknown", ACTIVATIONS}
    assert {key: size for key, size in found.items() if key not in passing} == {
        key: size for key, size in peak.items() if key not in passing
    }
    assert found.get(ACTIVATIONS, 0) <= peak.get(ACTIVATIONS, 0) and found.get("unknown", 0) <= 64


@pytest.mark.skipif(missing_compiler() is not None, reason=f"needs {missing_compiler()}")
def test_tensors_of_an_allocator_add_up_to_what_it_says_that_it_has() -> None:
    """Its pieces came from no call that was seen: what it has is older than the observation."""
    done = otelgpu("diagnose", "memory", "--json", "--", *tensor_command())
    checkpoints = done.stdout.partition("{\n")[0].splitlines()
    (stands,) = json.loads(checkpoints[-1])["devices"].values()
    report = json.loads("{\n" + done.stdout.partition("{\n")[2])
    (device,) = report["devices"]
    held = device["now"]
    assert (held["when"], held["ledger"], held["older"]) == ("exit", 0, stands["reserved"])
    found = {each["category"]: each["bytes"] for each in held["categories"]}
    assert found.pop(CACHE) == stands["reserved"] - stands["allocated"]
    assert sum(found.values()) == stands["allocated"]


def test_one_that_recovers_has_no_verdict_and_a_remark() -> None:
    report = diagnosed("recovers")
    assert report["verdicts"] == []
    assert (report["input"]["failures"], report["input"]["recovered"]) == (1, 1)
    assert "after 800.0 MiB was freed" in report["remarks"][0]


def test_a_failure_names_who_held_what_and_why(tmp_path: Path) -> None:
    """What the driver says is by the process's id, which is known once it runs."""
    script = Script(tmp_path / "nvml").gpu(0, memory_total=GIB, memory_used=500 * MIB)
    page = tmp_path / "report.html"
    environ = {"LD_LIBRARY_PATH": str(BUILD), "FAKE_NVML": str(script.path)}
    waits = "import os, runpy, sys; sys.stdin.readline(); sys.argv = ['m', 'out_of_memory']; "
    source = f"{waits}runpy.run_module('tests.gallery.memory_programs', run_name='__main__')"
    command = [sys.executable, "-c", source]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **ENVIRON}, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        script.line(f"process 0 {running.pid} {450 * MIB} 0 0 0 1")
        script.line(f"process 0 1 {50 * MIB} 0 0 0 1")
        arguments = ["diagnose", "memory", "--json", "-p", str(running.pid), "-d", "60", "-o", str(page)]
        with subprocess.Popen(
            [OTELGPU, *arguments],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as looking:
            assert looking.stderr is not None and "profiling process" in looking.stderr.readline()
            assert running.stdin is not None
            running.stdin.write(b"\n")
            running.stdin.close()
            output, errors = looking.communicate(timeout=60)
        assert running.wait(timeout=30) == 1
    assert looking.returncode == 3, errors
    report = json.loads(output)
    (verdict,) = report["verdicts"]
    assert (verdict["cause"], verdict["detail"]) == (OUT_OF_MEMORY, "own_memory")
    assert verdict["bytes"] == 700 * MIB
    said = " ".join(each["text"] for each in verdict["evidence"])
    assert (
        "400.0 MiB in 1 by allocate (memory_programs.py" in said
        and "load_weights (memory_programs.py" in said
    )
    assert "524.0 MiB of 1.0 GiB of the device were free" in said and "PID 1: 50.0 MiB" in said
    (device,) = report["devices"]
    assert categories(device["peak"]) == {WEIGHTS: 400}
    assert (device["peak"]["charged"], device["peak"]["context"]) == (450 * MIB, 50 * MIB)
    assert "load_weights" in page.read_text()


def test_a_session_of_any_kind_has_the_event_and_a_file_is_diagnosed_like_the_program(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    done = otelgpu("profile", "-t", "mem", "--export", f"file:{path}", "--", *program("out_of_memory"))
    assert done.returncode == 1 and "out of memory beside" in done.stderr
    (event,) = events(path)
    assert event.attributes[names.REQUESTED] == 700 * MIB
    assert event.attributes[names.OUTCOME] == names.ENDED
    (holder,) = event.attributes[names.HOLDERS]  # type: ignore[misc]
    assert holder.startswith("400.0 MiB in 1 by allocate")
    report = report_of(otelgpu("diagnose", "memory", "--json", str(path)))
    assert [each["cause"] for each in report["verdicts"]] == [OUT_OF_MEMORY]
    assert categories(report["devices"][0]["now"]) == {WEIGHTS: 400}


def events(path: Path) -> list[Event]:
    return list(read_events(path.read_bytes().split(b"\n"), Reader()))


def test_run_without_profiles_has_it_too_and_the_console_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    done = otelgpu("run", "--export", "console", "--export", f"file:{path}", "--", *program("recovers"))
    (event,) = events(path)
    assert (event.attributes[names.OUTCOME], event.warns) == (names.RECOVERED, False)
    assert event.text in done.stdout
