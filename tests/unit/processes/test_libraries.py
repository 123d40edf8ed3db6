"""Which files of a program are found before it starts."""

from __future__ import annotations

import doctest
import os
import sys
from pathlib import Path

import pytest

from otelgpu.processes import libraries
from otelgpu.processes.libraries import ResolvedProgram, library_name_of, resolve_program
from tests.unit.elf.elf_builders import PROGRAM, compile_c, synthetic_elf
from tests.unit.processes.test_dynamic_linker import HERE, cache

STEMS = {"libcudart", "libnccl"}


@pytest.mark.parametrize(
    ("path", "library_name"),
    [
        ("/v/nvidia/cuda_runtime/lib/libcudart.so.12", "libcudart"),
        ("libcudart-d0da41ae.so.11.0", "libcudart"),
        ("/usr/local/cuda/lib64/libcudart.so.12.4.127", "libcudart"),
        ("libcudart.so", "libcudart"),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda"),
        ("libnccl.so.2", "libnccl"),
        ("libnccl-net.so", "libnccl-net"),
        ("libstdc++.so.6.0.30", "libstdc++"),
        ("libgomp-24e2ab19.so.1.0.0", "libgomp"),
        ("libcudart_static.a", None),
        ("libcudart.so.12.debug", None),
        ("libcudart.so.12 ", None),
        ("_C.cpython-311-x86_64-linux-gnu.so", None),
        ("/usr/bin/python3.11", None),
        ("lib.so", None),
        ("", None),
    ],
)
def test_library_names(path: str, library_name: str | None) -> None:
    assert library_name_of(path) == library_name


def test_the_examples_hold() -> None:
    assert doctest.testmod(libraries).failed == 0


def library(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content or synthetic_elf(1, size=4))
    return path


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def resolve(argv: list[str], cwd: Path, **environ: str) -> ResolvedProgram:
    return resolve_program(argv, environ, cwd, STEMS, root=cwd / "no-root")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return compile_c(tmp_path, "app", PROGRAM)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment of this interpreter, with a few packages."""
    prefix = tmp_path / "venv"
    (prefix / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (prefix / "bin" / name).symlink_to(Path(sys.executable).resolve())
    home = Path(sys.executable).resolve().parent
    (prefix / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    site = prefix / "lib/python3.11/site-packages"
    for name in (
        *(
            "nvidia/cuda_runtime/lib/libcudart.so.12",
            "nvidia/cu13/lib/libcudart.so.13",
            "nvidia/nccl/lib/libnccl.so.2",
        ),
        *(
            "torch/lib/libcudart-d0da41ae.so.11.0",
            "cupy.libs/libcudart-12345678.so.12",
            "a/b/c/libcudart.so.9",
        ),
        *("torch/lib/libtorch.so", "a/b/c/d/libcudart.so.8", "a/__pycache__/libcudart.so.7"),
    ):
        library(site / name)
    return prefix


def names_below(found: ResolvedProgram, folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in found.files if path.is_relative_to(folder)}


def test_a_program_is_found_on_the_path(program: Path, tmp_path: Path) -> None:
    found = resolve(["app"], tmp_path, PATH=f"/nowhere:{program.parent}")
    assert found.executable == program and found.files == (program,) and found.complete
    assert resolve(["./app"], tmp_path).executable == program
    assert resolve(["app"], tmp_path, PATH="/nowhere").executable is None
    (tmp_path / "plain").write_bytes(program.read_bytes())
    assert resolve(["./plain"], tmp_path).executable is None
    assert resolve([], tmp_path) == ResolvedProgram(executable=None, files=(), complete=True)


def test_a_folder_of_the_path_that_cannot_be_looked_into_is_passed_over(
    program: Path, tmp_path: Path
) -> None:
    """Root may read every folder, but no name is so long."""
    assert resolve(["app"], tmp_path, PATH=f"/{'a' * 300}:{program.parent}").executable == program


def test_scripts_lead_to_their_interpreter(program: Path, tmp_path: Path) -> None:
    script(tmp_path / "one", f"#!{program} -x\n")
    script(tmp_path / "two", f"#! {tmp_path}/one\n")
    assert resolve(["./two"], tmp_path).executable == program
    script(tmp_path / "by_env", "#!/usr/bin/env app\n")
    assert resolve(["./by_env"], tmp_path, PATH=str(tmp_path)).executable == program
    assert resolve(["/usr/bin/env", "-u", "X", "A=b", "./app"], tmp_path).executable == program


def test_a_script_of_itself_ends(tmp_path: Path) -> None:
    script(tmp_path / "loop", f"#!{tmp_path}/loop\n")
    assert resolve(["./loop"], tmp_path).files == (tmp_path / "loop",)
    (tmp_path / "circle").symlink_to("circle")
    assert resolve(["./circle"], tmp_path).executable is None


def test_needed_libraries_are_followed(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    runtime = compile_c(
        tmp_path / "lib",
        "libcudart.so.12",
        "int cudaMalloc(void) { return 0; }",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcudart.so.12",
    )
    middle = compile_c(
        tmp_path / "lib",
        "libengine.so",
        "int cudaMalloc(void); int run(void) { return cudaMalloc(); }",
        *("-shared", "-fPIC", str(runtime), "-Wl,-rpath,$ORIGIN"),
    )
    program = compile_c(
        tmp_path,
        "served",
        "int run(void); int main(void) { return run(); }",
        *(f"-L{middle.parent}", "-lengine", "-Wl,-rpath,$ORIGIN/lib", f"-Wl,-rpath-link,{middle.parent}"),
    )
    found = resolve(["./served"], tmp_path).files
    assert found[0] == program
    assert {middle, runtime} <= set(found)  # the one between may have the runtime linked into it


def test_the_environment_names_libraries(program: Path, tmp_path: Path) -> None:
    preloaded = library(tmp_path / "p/libnccl.so.2")
    by_path = library(tmp_path / "e/libcudart.so.12")
    (tmp_path / "e/libcudart.so").symlink_to("libcudart.so.12")
    library(tmp_path / "e/libother.so")
    found = resolve(["./app"], tmp_path, LD_PRELOAD=str(preloaded), LD_LIBRARY_PATH=f"e:{tmp_path}/none")
    assert found.files == (program, preloaded, by_path)


def test_the_systems_cache_names_libraries(program: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(cache(("libcudart.so.12", "/cuda/libcudart.so.12", HERE, 0)))
    installed = library(tmp_path / "cuda/libcudart.so.12")
    assert resolve_program([str(program)], {}, tmp_path, STEMS, root=tmp_path).files == (program, installed)


def test_packages_of_a_virtual_environment_are_searched(venv: Path, tmp_path: Path) -> None:
    found = resolve([str(venv / "bin/python"), "-m", "vllm"], tmp_path)
    assert found.executable == Path(sys.executable).resolve()
    site = venv / "lib/python3.11/site-packages"
    assert names_below(found, site) == {
        *(
            "nvidia/cuda_runtime/lib/libcudart.so.12",
            "nvidia/cu13/lib/libcudart.so.13",
            "nvidia/nccl/lib/libnccl.so.2",
        ),
        *(
            "torch/lib/libcudart-d0da41ae.so.11.0",
            "cupy.libs/libcudart-12345678.so.12",
            "a/b/c/libcudart.so.9",
        ),
    }


def test_scripts_of_a_virtual_environment_are_followed(venv: Path, tmp_path: Path) -> None:
    script(venv / "bin/gunicorn", f"#!{venv}/bin/python3\nimport gunicorn\n")
    files = resolve(["gunicorn", "app:app"], tmp_path, PATH=f"{venv}/bin").files
    assert sum(library_name_of(path) in STEMS for path in files) == 6


def test_what_a_shell_starts_is_looked_for_with_the_python_of_its_path(venv: Path, tmp_path: Path) -> None:
    start = script(tmp_path / "start.sh", "#!/bin/sh\nexec python3 -m vllm\n")
    found = resolve([str(start)], tmp_path, PATH=f"{venv}/bin")
    assert found.executable == Path("/bin/sh").resolve()
    assert len(names_below(found, venv)) == 6


def test_pyenv_shims_lead_to_every_version(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "pyenv/versions").mkdir(parents=True)
    venv.rename(tmp_path / "pyenv/versions/3.11.7")
    shim = script(tmp_path / "pyenv/shims/python3", "#!/bin/sh\nexec pyenv exec python3\n")
    assert len(names_below(resolve([str(shim)], tmp_path), tmp_path / "pyenv")) == 6


def test_other_import_folders_are_searched(tmp_path: Path) -> None:
    on_path = library(tmp_path / "extra/pkg/libcudart.so.12")
    of_user = library(tmp_path / "home/.local/lib/python3.11/site-packages/x/libnccl.so.2")
    python = str(Path(sys.executable).resolve())
    environ = {"PYTHONPATH": "extra::", "HOME": str(tmp_path / "home")}
    assert {on_path, of_user} <= set(resolve([python], tmp_path, **environ).files)
    assert of_user not in resolve([python], tmp_path, **environ, PYTHONNOUSERSITE="1").files


def test_the_search_of_packages_ends_in_time(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otelgpu.processes.libraries._SEARCH_NS", -1)
    found = resolve([str(venv / "bin/python")], tmp_path)
    assert not found.complete
    assert "torch/lib/libcudart-d0da41ae.so.11.0" in names_below(found, venv / "lib/python3.11/site-packages")


def test_unreadable_and_foreign_files_are_passed_over(program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "e"
    folder.mkdir()
    (folder / "libcudart.so.1").symlink_to("nowhere")
    os.mkfifo(folder / "libcudart.so.2")
    (folder / "libcudart.so.3").mkdir()
    library(folder / "libcudart.so.4", b"\x7fELF\x01 not for this machine")
    found = resolve(["./app"], tmp_path, LD_LIBRARY_PATH="e", LD_PRELOAD="e/libcudart.so.4 e/libcudart.so.2")
    assert found.executable == program
    assert set(found.files) == {program, folder / "libcudart.so.4"}


def test_the_real_runtime_of_this_environment_is_found(tmp_path: Path) -> None:
    runtime = pytest.importorskip("nvidia.cuda_runtime", reason="nvidia-cuda-runtime-cu12 is not installed")
    path = Path(next(iter(runtime.__path__))).resolve() / "lib/libcudart.so.12"
    if not path.exists():
        pytest.skip("nvidia-cuda-runtime-cu12 is not installed")
    assert path in resolve([sys.executable, "server.py"], tmp_path).files
