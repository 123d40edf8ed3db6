"""Whether packages declare entry points of a group is seen in their folders, which are looked through once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otelgpu.engine.registry import entry_points


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [str(tmp_path), str(tmp_path / "nothing")])
    return tmp_path


def install(place: Path, package: str, group: str) -> None:
    folder = place / f"{package}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{group}]\n{package} = {package}:x\n")


def names(group: str) -> list[str]:
    return [point.name for point in entry_points(group)]


def test_each_group_has_its_own_and_packages_that_come_later_are_seen(place: Path) -> None:
    install(place, "one", "some.group")
    assert (names("some.group"), names("another.group")) == (["one"], [])
    install(place, "two", "another.group")
    os.utime(place, ns=(1, 1))  # later, however coarse the file system's clock is
    assert (names("some.group"), names("another.group")) == (["one"], ["two"])


def test_a_folder_s_packages_are_read_once_for_all_groups(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(place, "one", "some.group")
    assert names("a.group") == []
    monkeypatch.setattr(os, "listdir", lambda folder: pytest.fail(f"{folder} is looked through again"))
    assert names("another.group") == []


def test_where_a_package_may_be_that_is_not_unpacked_all_ways_are_tried(place: Path) -> None:
    (place / "old.egg").mkdir()
    assert names("some.group") == []


def test_what_cannot_be_looked_at_has_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "listdir", refuse)
    assert names("some.group") == []
