"""What a user is said when something is missing or refused: clear lines, no traceback, nothing half-way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otelgpu.kernel import libbpf
from otelgpu.kernel.libbpf import BpfError, Program
from otelgpu.kernel.loader import Image, LoadedFamily, Loader, load_family
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from tests.kernel.observing import OTELGPU, Watch, compiled_image, run_otelgpu
from tests.rig import start_cuda_client
from tests.unit.elf.go_builders import FUNCTION, go_elf

# Uid 65534 with the one capability to read this checkout and its interpreter, wherever they lie.
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
NOBODY += ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search", "--")
# Root in a container that was given no capabilities.
BARE_ROOT = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--")


@pytest.fixture(scope="module")
def unchecked(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return compiled_image("unchecked", tmp_path_factory.mktemp("bpf"))


def test_the_verifier_s_reporting_lines_are_in_the_error(unchecked: Image) -> None:
    with pytest.raises(BpfError) as caught:
        load_family(unchecked, constants={}, ring_bytes=4096)
    lines = str(caught.value).splitlines()
    assert "refused BPF object process" in lines[0]
    assert any("forgets_to_check" in line for line in lines)
    assert any("map_value_or_null" in line for line in lines)
    assert any("*value += 1" in line for line in lines)  # the line of the source
    assert len(lines) <= 15
    assert caught.value.errno == 13  # EACCES


def test_where_the_kernel_refuses_profiles_a_session_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(loader: Loader, image: Image, **options: Any) -> LoadedFamily:
        if image.family == "profile":
            raise BpfError("the kernel refused BPF object profile")
        return load(loader, image, **options)

    load = Loader.load
    monkeypatch.setattr(Loader, "load", refuse)
    profile = ProfileSettings(kinds=frozenset(ProfileKind))
    with Watch(families=("cuda", "profile"), profile=profile) as watching:
        assert {"process", "cuda"} <= watching.source.rings.keys()
        assert "profile" not in watching.source.rings
        assert watching.source.counters["family_not_loaded"] == 1
        with start_cuda_client(calls=23) as client:
            watching.observe(client.pid)
            said = watching.during(client.finish)
        watching.pump(0.2)
        assert watching.calls(said.pid)["cudaLaunchKernel"] == 23
    assert "family profile is not observed: the kernel refused BPF object profile" in caplog.text


def test_where_the_kernel_refuses_programs_that_came_later_the_family_goes_on_without_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def refuse(family: LoadedFamily) -> list[Program]:
        asked.append((family.family, sorted(family.waiting)))
        raise BpfError("the kernel refused BPF object http")

    asked: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(LoadedFamily, "load_waiting", refuse)
    with Watch(families=("http",)) as watching:
        for name, function in (("serve", "crypto/tls.(*Conn).Read"), ("other", "crypto/tls.(*Conn).Close")):
            path = tmp_path / name
            path.write_bytes(go_elf({function: FUNCTION, "main.main": b"\x06"}))
            watching.source.prepare_file(path)
        ((family, waiting),) = asked
        assert watching.source.counters["programs_not_loaded"] == 1
        assert not [each for each in watching.source.probed_files if each.path.startswith(str(tmp_path))]
    assert family == "http"
    assert "go_tls_reads" in waiting
    assert not [name for name in waiting if not name.startswith("go_")]
    assert "family http goes without the programs that were to be loaded now" in caplog.text


@pytest.mark.parametrize("prefix", [NOBODY, BARE_ROOT], ids=["nobody", "bare root"])
@pytest.mark.parametrize("command", ["run", "attach", "agent", "record"])
def test_without_privileges_there_is_one_clear_error(
    tmp_path: Path, prefix: tuple[str, ...], command: str
) -> None:
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"setpriv does not work here: {tried.stderr}")
    mark = tmp_path / "started"
    os.chmod(tmp_path, 0o777)
    program = ["--", "sh", "-c", f"touch {mark}"]
    arguments = {
        "run": ["--export=file:/dev/null", *program],
        "attach": ["--export=file:/dev/null", f"-p{os.getpid()}"],
        "agent": ["--export=file:/dev/null"],
        "record": ["-o", str(tmp_path / "capture"), *program],
    }
    done = subprocess.run(
        [*prefix, OTELGPU, command, *arguments[command]],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert not mark.exists()  # the program was not started
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("otelgpu: ")
    assert len(done.stderr.splitlines()) <= 2, done.stderr
    assert "root" in done.stderr or "CAP_" in done.stderr


def test_check_works_without_privileges() -> None:
    done = subprocess.run(
        [*NOBODY, OTELGPU, "check"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert "CAP_BPF" in done.stdout


def test_a_missing_libbpf_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libbpf, "_NEEDED", "libbpf-that-is-not.so.1")
    with pytest.raises(BpfError) as caught:
        libbpf.Libbpf()
    first, hint = str(caught.value).splitlines()
    assert "libbpf-that-is-not.so.1" in first
    assert "apt-get install libbpf1" in hint


def test_a_missing_libbpf_ends_a_session_before_it_begins(tmp_path: Path) -> None:
    program = (
        "from otelgpu.kernel import libbpf; libbpf._NEEDED = 'libbpf-that-is-not.so.1'\n"
        "from otelgpu.cli.main import main; main()"
    )
    mark = tmp_path / "started"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "--export=file:/dev/null", "--", "touch", str(mark)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("otelgpu: cannot use libbpf-that-is-not.so.1")
    assert len(done.stderr.splitlines()) == 2
    assert not mark.exists()


def test_a_missing_object_is_reported_with_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from otelgpu.kernel.loader import read_image

    with pytest.raises(BpfError, match="make bpf"):
        read_image("hip")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ring-bytes=100000",), "power of two"),
        (("--ring-bytes=1",), "ring"),
        (("--export=nowhere:x",), "nowhere"),
        (("--families=cuda,hip",), "hip"),
        (("--config=/no/such/file.yaml",), "/no/such/file.yaml"),
    ],
)
def test_a_wrong_setting_is_reported_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    mark = tmp_path / "started"
    done = run_otelgpu("run", *arguments, "--", "touch", str(mark), cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not mark.exists()
