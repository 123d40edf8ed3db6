"""What is said of a build: its bill of materials and its provenance, against the format's own schema."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tools import supply_chain
from tools.check_package import differences
from tools.supply_chain import Source, bill_of_image, bill_of_wheel, pinned, statement

MADE = Source(commit="c" * 40, when=datetime(2026, 1, 2, tzinfo=UTC), is_changed=False)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "otelgpu-1-py3-none-any.whl"
    path.write_bytes(b"a wheel")
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The files of an image, as far as they are looked at."""
    root = tmp_path / "root"
    for path, text in {
        "etc/os-release": 'NAME="Debian"\nVERSION_ID="12"\n',
        "var/lib/dpkg/status": (
            "Package: libbpf1\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:1.1.0-1\n\n"
            "Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 2\n"
        ),
        "opt/otelgpu/lib/python3.11/site-packages/otelgpu-1.dist-info/METADATA": (
            "Metadata-Version: 2.4\nName: otelgpu\nVersion: 1\nRequires-Dist: PyYAML>=6\n"
            "Requires-Dist: lz4; extra == 'names'\nRequires-Dist: pytest; extra == 'test'\n"
        ),
        "opt/otelgpu/lib/python3.11/site-packages/PyYAML-6.dist-info/METADATA": (
            "Metadata-Version: 2.1\nName: PyYAML\nVersion: 6\nLicense: MIT\n"
        ),
        "opt/otelgpu/lib/python3.11/site-packages/lz4-4.dist-info/METADATA": (
            "Metadata-Version: 2.4\nName: lz4\nVersion: 4\nLicense-Expression: BSD-3-Clause\n"
        ),
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def checked(text: str) -> dict[str, Any]:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document: dict[str, Any] = json.loads(text)
    return document


def depends_on(document: dict[str, Any]) -> dict[str, list[str]]:
    return {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}


def test_a_wheel_s_bill_has_every_package_that_comes_with_it_and_its_digest(wheel: Path) -> None:
    document = checked(bill_of_wheel(wheel, MADE))
    assert {each["name"]: each["version"] for each in document["components"]} == {
        name: version(name) for name in pinned("program.txt")
    }
    assert all(each["purl"].startswith("pkg:pypi/") for each in document["components"])
    subject = document["metadata"]["component"]
    assert subject["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"a wheel").hexdigest()}]
    assert document["metadata"]["timestamp"].startswith("2026-01-02T")


def test_all_that_a_wheel_s_bill_lists_is_reached_from_the_wheel(wheel: Path) -> None:
    document = checked(bill_of_wheel(wheel, MADE))
    edges, seen, due = depends_on(document), set(), [document["metadata"]["component"]["bom-ref"]]
    while due:
        one = due.pop()
        if one not in seen:
            seen.add(one)
            due += edges.get(one, [])
    assert {each["bom-ref"] for each in document["components"]} <= seen


def test_a_bill_that_differs_from_what_was_installed_is_found(wheel: Path, tmp_path: Path) -> None:
    path = tmp_path / "bill.json"
    path.write_text(bill_of_wheel(wheel, MADE))
    installed = {name: version(name) for name in (*pinned("program.txt"), "otelgpu")} | {"pip": "1"}
    assert differences(path, wheel, installed) == ""
    assert differences(path, wheel, installed | {"stowaway": "6"}) == "stowaway 6"
    assert "numpy 0" in differences(path, wheel, installed | {"numpy": "0"})
    wheel.write_bytes(b"another")
    assert differences(path, wheel, installed) == "another wheel"


def test_an_image_s_bill_has_its_packages_of_python_and_of_debian(image: Path) -> None:
    document = checked(bill_of_image(image, "otelgpu", f"sha256:{'d' * 64}", MADE))
    assert {each["bom-ref"]: each["purl"] for each in document["components"]} == {
        "pypi:otelgpu@1": "pkg:pypi/otelgpu@1",
        "pypi:pyyaml@6": "pkg:pypi/pyyaml@6",
        "pypi:lz4@4": "pkg:pypi/lz4@4",
        "deb:libbpf1:amd64@1:1.1.0-1": "pkg:deb/debian/libbpf1@1:1.1.0-1?arch=amd64&distro=debian-12",
    }
    edges = depends_on(document)
    assert edges[f"otelgpu@sha256:{'d' * 64}"] == ["deb:libbpf1:amd64@1:1.1.0-1", "pypi:otelgpu@1"]
    assert edges["pypi:otelgpu@1"] == ["pypi:lz4@4", "pypi:pyyaml@6"]


def test_a_statement_has_the_digests_the_commit_and_who_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTELGPU_BUILDER_ID", "https://builds.example/7")
    said = json.loads(statement({"a.whl": "a" * 64, "a.tar.gz": "b" * 64}, MADE))
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://slsa.dev/provenance/v1"
    assert said["subject"] == [
        {"name": "a.whl", "digest": {"sha256": "a" * 64}},
        {"name": "a.tar.gz", "digest": {"sha256": "b" * 64}},
    ]
    dependencies = {
        each["name"]: each for each in said["predicate"]["buildDefinition"]["resolvedDependencies"]
    }
    assert dependencies["source"] == {
        "name": "source",
        "digest": {"gitCommit": "c" * 40},
        "annotations": {"changed": False},
    }
    pins = (supply_chain.FOLDER / "program.txt").read_bytes()
    assert dependencies["requirements/program.txt"]["digest"] == {"sha256": hashlib.sha256(pins).hexdigest()}
    assert said["predicate"]["runDetails"]["builder"] == {"id": "https://builds.example/7"}


def test_a_source_that_is_not_committed_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply_chain, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert supply_chain.source().is_changed
    git = supply_chain.git
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-qm", "1")
    made = supply_chain.source()
    assert (len(made.commit), made.is_changed) == (40, False)
    (tmp_path / "file").write_text("2")
    assert supply_chain.source() == Source(commit=made.commit, when=made.when, is_changed=True)
