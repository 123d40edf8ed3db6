"""hatch_build.build_inject: the in-process source's part of the build."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hatch_build as hook

BUILT = ["otelgpu/_inject/libotelgpu_inject.so", "otelgpu/_inject/memory.o"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of the same shape, with less in it."""
    if shutil.which("gcc") is None or shutil.which("clang") is None:
        pytest.skip("gcc or clang is not installed")
    sources = tmp_path / "tree" / "otelgpu" / "inject"
    sources.mkdir(parents=True)
    (tmp_path / "tree" / "bpf").mkdir()
    for name, text in {"glibc.h": "", "memory.c": "int layout;", "connection.c": "int here;"}.items():
        (sources / name).write_text(text)
    return tmp_path / "tree"


def test_nothing_is_compiled_twice_and_a_changed_header_is(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [str(path) for path in hook.build_inject(tree)] == BUILT
    capsys.readouterr()
    hook.build_inject(tree)
    assert capsys.readouterr().out == ""
    (tree / "otelgpu" / "inject" / "glibc.h").write_text("extern int here;")
    hook.build_inject(tree)
    assert capsys.readouterr().out.count("INJECT") == 2
    (tree / BUILT[1]).write_bytes(b"")
    hook.build_inject(tree)
    assert capsys.readouterr().out.count("INJECT") == 2


def test_a_rejected_source_leaves_the_old_library(tree: Path) -> None:
    hook.build_inject(tree)
    kept = (tree / BUILT[0]).read_bytes()
    (tree / "otelgpu" / "inject" / "connection.c").write_text("#error BROKEN")
    with pytest.raises(hook.BuildError, match="BROKEN"):
        hook.build_inject(tree)
    assert (tree / BUILT[0]).read_bytes() == kept


def test_without_a_compiler_what_is_there_is_kept(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook.build_inject(tree)
    monkeypatch.setenv("PATH", "")
    assert [str(path) for path in hook.build_inject(tree)] == BUILT
    shutil.rmtree(tree / "otelgpu" / "_inject")
    assert hook.build_inject(tree) == []


def test_a_tree_without_it_and_another_architecture_have_none(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hook.build_inject(tmp_path) == []
    monkeypatch.setattr(hook.platform, "machine", lambda: "aarch64")
    assert hook.build_inject(tree) == []
