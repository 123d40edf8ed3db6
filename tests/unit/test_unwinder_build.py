"""hatch_build.build_unwinder: the program that makes unwind tables."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

import hatch_build as hook

BUILT = ["otelgpu/_native/unwinder"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of the same shape, with less in it."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    sources = tmp_path / "tree" / "otelgpu" / "unwinder"
    sources.mkdir(parents=True)
    (tmp_path / "tree" / "bpf").mkdir()
    (sources / "frames.h").write_text("")
    (sources / "main.c").write_text('#include "frames.h"\nvoid _start(void) { for (;;); }')
    return tmp_path / "tree"


def test_it_is_built_when_something_changed_and_can_be_started(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [str(path) for path in hook.build_unwinder(tree)] == BUILT
    assert (tree / BUILT[0]).stat().st_mode & 0o777 == 0o755
    capsys.readouterr()
    hook.build_unwinder(tree)
    assert capsys.readouterr().out == ""
    (tree / "otelgpu" / "unwinder" / "frames.h").write_text("extern int here;")
    hook.build_unwinder(tree)
    assert capsys.readouterr().out.count("NATIVE") == 1


def test_a_rejected_source_leaves_the_old_one(tree: Path) -> None:
    hook.build_unwinder(tree)
    kept = (tree / BUILT[0]).read_bytes()
    (tree / "otelgpu" / "unwinder" / "main.c").write_text("#error BROKEN")
    with pytest.raises(hook.BuildError, match="BROKEN"):
        hook.build_unwinder(tree)
    assert (tree / BUILT[0]).read_bytes() == kept


def test_without_a_compiler_what_is_there_is_kept(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook.build_unwinder(tree)
    monkeypatch.setenv("PATH", "")
    assert [str(path) for path in hook.build_unwinder(tree)] == BUILT
    (tree / BUILT[0]).unlink()
    assert hook.build_unwinder(tree) == []


def test_another_architecture_has_none(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert hook.build_unwinder(tree) == []
