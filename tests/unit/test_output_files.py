"""Files for writing: made private where asked, and never another user's trap in a folder that all share."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from otelgpu.cli.profile_outputs import Output, Outputs
from otelgpu.errors import OtelgpuError
from otelgpu.export.base import ExportError
from otelgpu.export.file.exporter import FileExporter
from otelgpu.export.registry import parse_destination
from otelgpu.kernel.output_files import open_output
from otelgpu.sources.capture import CaptureError, create_capture


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp, and beside it a file that must not change."""
    (tmp_path / "precious").write_text("precious")
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def trap(shared: Path, kind: str) -> Path:
    path, precious = shared / "out", shared.parent / "precious"
    if kind == "symbolic link":
        path.symlink_to(precious)
    elif kind == "dangling link":
        path.symlink_to(shared.parent / "not-there")
    elif kind == "hard link":
        os.link(precious, path)
    elif kind == "pipe":
        os.mkfifo(path)
    return path


@pytest.mark.parametrize("append", [True, False])
@pytest.mark.parametrize("kind", ["symbolic link", "dangling link", "hard link", "pipe"])
def test_a_trap_in_a_shared_folder_is_refused_and_what_it_leads_to_untouched(
    shared: Path, kind: str, append: bool
) -> None:
    path = trap(shared, kind)
    with pytest.raises(PermissionError, match="everybody may write"):
        open_output(path, 0o600, append=append)
    assert (shared.parent / "precious").read_text() == "precious"
    assert not (shared.parent / "not-there").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_user_s_file_in_a_shared_folder_is_refused(shared: Path) -> None:
    path = shared / "out"
    path.write_text("theirs")
    path.chmod(0o666)
    os.chown(path, 1000, 1000)
    with pytest.raises(PermissionError):
        open_output(path, 0o600)
    assert path.read_text() == "theirs"


def test_one_s_own_file_in_a_shared_folder_is_taken(shared: Path) -> None:
    path = shared / "out"
    for expected in ("1", "12", "12"):
        with os.fdopen(open_output(path, 0o600, append=True), "w") as file:
            file.write(expected[-1])
    assert path.read_text() == "122"
    os.close(open_output(path, 0o600))
    assert path.read_text() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("kind", ["symbolic link", "dangling link", "hard link", "pipe"])
def test_a_trap_in_another_user_s_folder_is_refused(shared: Path, kind: str) -> None:
    path = trap(shared, kind)
    shared.chmod(0o755)
    os.chown(shared, 1000, 1000)
    with pytest.raises(PermissionError, match="of another user"):
        open_output(path, 0o600)
    assert (shared.parent / "precious").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_owner_s_own_file_in_the_owner_s_folder_is_taken(shared: Path) -> None:
    """As under sudo, in one's own home."""
    path = shared / "out"
    path.write_text("before")
    shared.chmod(0o755)
    for each in (shared, path):
        os.chown(each, 1000, 1000)
    os.close(open_output(path, 0o600, keep=True))
    assert path.read_text() == "before"
    os.close(open_output(path, 0o600))
    assert path.read_text() == ""


@pytest.mark.parametrize("kind", ["symbolic link", "hard link"])
def test_a_profile_does_not_overwrite_what_a_trap_leads_to(shared: Path, kind: str) -> None:
    path = trap(shared, kind).rename(shared / "out.svg")
    with pytest.raises(OtelgpuError, match="everybody may write"):
        Output(path)
    assert (shared.parent / "precious").read_text() == "precious"


def test_links_and_pipes_elsewhere_are_the_user_s_own(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to(target)
    with os.fdopen(open_output(tmp_path / "link", 0o600), "w") as file:
        file.write("x")
    assert target.read_text() == "x"
    os.close(open_output("/dev/null", 0o600))


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_capture_is_its_owner_s_and_results_nobody_else_may_write(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        create_capture(tmp_path / "capture").close()
        FileExporter(str(tmp_path / "traces")).close(0)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "capture").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "traces").stat().st_mode) == 0o644 & ~mask


@pytest.mark.parametrize("mask", [0o000, 0o022])
@pytest.mark.parametrize("before", [None, 0o644, 0o600, 0o660])
def test_what_holds_prompts_is_its_owner_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int, before: int | None
) -> None:
    """Whatever the umask is, and also where a file of a session without prompts was there."""
    paths = [tmp_path / name for name in ("traces", "capture", "out.svg")]
    if before is not None:
        for path in paths:
            path.touch()
            path.chmod(before)
    asked = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    was = os.umask(mask)
    try:
        parse_destination(f"file:{paths[0]}").open(asked, {}).close(0)
        create_capture(paths[1]).close()
        with Outputs(paths[2:]):
            modes = [stat.S_IMODE(path.stat().st_mode) for path in paths]
    finally:
        os.umask(was)
    assert modes == [0o600] * 3


def test_a_log_for_others_stays_theirs_without_prompts(tmp_path: Path) -> None:
    path = tmp_path / "traces"
    path.touch()
    path.chmod(0o664)
    parse_destination(f"file:{path}").open({}, {}).close(0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o664


def test_the_user_is_reported_in_one_line(shared: Path) -> None:
    path = trap(shared, "symbolic link")
    with pytest.raises(CaptureError, match=r"cannot write capture .*: it is a link or another user's"):
        create_capture(path)
    with pytest.raises(ExportError, match="it is a link or another user's"):
        FileExporter(str(path))
