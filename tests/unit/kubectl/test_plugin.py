"""The plug-in as it is handed out: one file that needs nothing of otelgpu, and krew's manifest of it."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

import kubectl_otelgpu
import otelgpu
from tools import kubectl_plugin

ROOT = Path(__file__).resolve().parents[3]
MODULES = sorted((ROOT / "kubectl_otelgpu").glob("*.py"))


def test_one_file_runs_where_otelgpu_is_not_installed(tmp_path: Path) -> None:
    program = tmp_path / "kubectl-otelgpu"
    program.write_bytes(kubectl_plugin.build_program())
    done = subprocess.run(
        [sys.executable, "-IS", program, "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout == f"kubectl-otelgpu {otelgpu.__version__}\n"


def test_from_the_same_tree_come_the_same_bytes() -> None:
    assert kubectl_plugin.build_program() == kubectl_plugin.build_program()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_the_standard_library_and_itself_alone(path: Path) -> None:
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names | {"kubectl_otelgpu"}


def test_the_versions_are_one() -> None:
    assert kubectl_otelgpu.__version__ == otelgpu.__version__


def test_krews_manifest_is_of_the_archive_and_keeps_krews_rules(tmp_path: Path) -> None:
    """Rules of krew's ``internal/index/validation`` and of its naming guide."""
    program = kubectl_plugin.build_program()
    archive = kubectl_plugin.build_archive(program)
    made = yaml.safe_load(kubectl_plugin.krew_manifest(archive, "https://downloads.example/a.tar.gz"))
    assert (made["apiVersion"], made["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert re.fullmatch(r"[\w-]+", made["metadata"]["name"])
    spec = made["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50 and spec["shortDescription"][-1] != "."
    (platform,) = spec["platforms"]
    assert platform["uri"] == "https://downloads.example/a.tar.gz"
    assert platform["sha256"] == hashlib.sha256(archive).hexdigest()
    (tmp_path / "a.tar.gz").write_bytes(archive)
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        assert {each["from"] for each in platform["files"]} == set(packed.getnames())
        assert packed.getmember(platform["bin"]).mode & 0o111
