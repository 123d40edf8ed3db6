"""With the capabilities of the table everything is seen; without any one of them just what the table says is not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from otelgpu.kernel.privileges import capabilities as needs
from otelgpu.kernel.privileges.capabilities import Capability, Need
from tests.kernel.observing import OTELGPU, wait_until
from tests.kernel.privileged import CALLS, NOBODY, OTHER_USER, Heard, attach, limited
from tests.rig import ROOT

pytestmark = [pytest.mark.usefixtures("kernel"), pytest.mark.long]

KEPT: Final = frozenset[Capability]().union(*(need.capabilities for need in needs.NEEDS if need.later))
ALL: Final = {"own": CALLS, "contained": CALLS, "private": CALLS, "deleted": CALLS}
NOT_READ: Final = "GPU errors (Xid) are not reported"


@dataclass(frozen=True)
class Refusal:
    """What a session sees less of when the capability is gone, and what it says."""

    unseen: tuple[str, ...] = ()
    says: str = ""


def _warned(need: Need) -> str:
    return f"{needs.names(sorted(need.capabilities))} is missing: {need.without}"


REFUSALS: Final = {
    needs.OTHER_PROCESSES: Refusal(("contained",), _warned(needs.OTHER_PROCESSES)),
    needs.OTHER_FILES: Refusal(("private",), _warned(needs.OTHER_FILES)),
    needs.REPLACED_FILES: Refusal(("deleted",), _warned(needs.REPLACED_FILES)),
    needs.KERNEL_LOG: Refusal((), NOT_READ),
    needs.HOLDING: Refusal(),
}
"""By need; :data:`~needs.LOADING` and holding, without which no session begins, have tests of their own."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter, as pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="otelgpu-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(autouse=True)
def readable_program() -> None:
    """Root without a capability can read this checkout only where root owns it."""
    for path in (Path(sys.executable).resolve(), Path(needs.__file__)):
        if path.stat().st_uid:
            pytest.skip(
                f"{path} is not root's: a root without CAP_DAC_READ_SEARCH may not be able to read it"
            )


def dmesg_is_restricted() -> bool:
    return Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() == "1"


def maps_are_open_to_perfmon() -> bool:
    """Whether this kernel lets CAP_PERFMON read what other users' processes have mapped."""
    other = ["setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups", "sleep", "60"]
    with subprocess.Popen(other) as process:
        wait_until(lambda: Path(f"/proc/{process.pid}").stat().st_uid == OTHER_USER, "it is another user's")
        read = [*limited({Capability.PERFMON}), "head", "-c1", f"/proc/{process.pid}/maps"]
        tried = subprocess.run(read, capture_output=True, check=False)
        process.kill()
    return tried.returncode == 0


def assert_seen(heard: Heard, unseen: tuple[str, ...] = ()) -> None:
    assert heard.began, heard.said
    expected = {name: 0 if name in unseen else count for name, count in ALL.items()}
    assert heard.launches == expected, heard.said
    assert "Traceback" not in heard.said and "internal error" not in heard.said, heard.said


def test_every_need_that_stays_has_a_trial() -> None:
    assert {*REFUSALS, needs.LOADING, needs.SIGNALLING} == {need for need in needs.NEEDS if need.later}


@pytest.mark.parametrize("uid", [0, NOBODY], ids=["root of a container", "another user"])
def test_with_the_capabilities_of_the_table_all_is_seen_and_nothing_is_said(uid: int, place: Path) -> None:
    heard = attach(place, limited(KEPT, uid=uid), agent=uid)
    assert_seen(heard)
    assert "WARNING" not in heard.said, heard.said
    assert "kernel_log" not in heard.said


@pytest.mark.parametrize("need", REFUSALS, ids=lambda need: need.name)
def test_without_one_its_feature_refuses_and_nothing_else(need: Need, place: Path) -> None:
    if need is needs.KERNEL_LOG and not dmesg_is_restricted():
        pytest.skip("kernel.dmesg_restrict is 0: everybody may read the log")
    refusal = REFUSALS[need]
    heard = attach(place, limited(KEPT - need.capabilities))
    blind = need is needs.OTHER_PROCESSES and not maps_are_open_to_perfmon()
    assert_seen(heard, (*refusal.unseen, "private") if blind else refusal.unseen)
    warnings = [line for line in heard.said.splitlines() if "WARNING" in line]
    assert len(warnings) == bool(refusal.says), heard.said
    assert all(refusal.says in line for line in warnings), heard.said
    assert ("kernel_log_refused" in heard.said) == (need is needs.KERNEL_LOG)


@pytest.mark.parametrize("missing", sorted(needs.LOADING.capabilities), ids=str)
def test_without_loading_no_session_begins(missing: Capability, place: Path) -> None:
    heard = attach(place, limited(KEPT - {missing}))
    assert not heard.began
    assert "CAP_BPF and CAP_PERFMON" in heard.said and len(heard.said.splitlines()) <= 2, heard.said


def test_nobody_is_held_who_could_not_be_let_go(place: Path) -> None:
    heard = attach(place, limited(KEPT - needs.HOLDING.capabilities), "--hold-on-load")
    assert not heard.began
    assert heard.said.startswith("otelgpu: CAP_KILL is missing, which holding processes needs"), heard.said
    assert_seen(attach(_below(place), limited(KEPT), "--hold-on-load"))


def _below(folder: Path) -> Path:
    below = folder / "again"
    below.mkdir()
    return below


@pytest.mark.parametrize("able", [True, False], ids=["with CAP_KILL", "without"])
def test_a_signal_reaches_a_program_that_changed_its_user(able: bool, place: Path) -> None:
    changing = frozenset((*KEPT, _SETUID, _SETGID))
    ready = place / "ready"
    place.chmod(0o777)
    program = (
        f"import os, time; os.setgroups([]); os.setgid({OTHER_USER}); os.setuid({OTHER_USER}); "
        f"open({str(ready)!r}, 'w').close(); time.sleep(6); raise SystemExit(7)"
    )
    prefix = limited(changing if able else changing - needs.SIGNALLING.capabilities)
    command = [*prefix, OTELGPU, "run", "--export=file:/dev/null", "--", sys.executable, "-c", program]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=place) as session:
        wait_until(ready.exists, "the program is another user's", 30)
        session.send_signal(signal.SIGTERM)
        said = session.communicate(timeout=60)[1]
    assert session.returncode == (128 + signal.SIGTERM if able else 7), said
    assert ("runs as another user (CAP_KILL)" in said) != able, said


class _Named(int):
    """A capability that otelgpu has no use for."""

    def __new__(cls, number: int, name: str) -> _Named:
        made = super().__new__(cls, number)
        made.name = name
        return made

    name: str


_SETGID, _SETUID = _Named(6, "SETGID"), _Named(7, "SETUID")


def test_check_names_what_is_missing_for_each_feature() -> None:
    reported = subprocess.run(
        [*limited(()), OTELGPU, "check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert reported.returncode == 1
    for need in (needs.LOADING, *needs.REPORTED):
        assert f"missing: {needs.names(sorted(need.capabilities))}" in reported.stdout
        assert need.without in " ".join(reported.stdout.split())


PERMITTED_ONLY: Final = """
import ctypes, struct, sys
from otelgpu.cli import commands
from otelgpu.cli.main import main
from otelgpu.kernel import quiet_imports
from otelgpu.kernel.privileges import dropping  # read before: nobody may look into the checkout
libc, header, sets = ctypes.CDLL(None), struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
assert libc.capget(header, sets) == 0
words = list(struct.unpack("=6I", sets))
words[0::3] = [0, 0]
assert libc.capset(header, struct.pack("=6I", *words)) == 0
sys.argv.pop(0)
main()
"""
"""As of a file with capabilities that are not made effective (``setcap …=p``)."""


def test_what_is_only_permitted_is_made_effective(place: Path) -> None:
    prefix = [*limited(KEPT, uid=NOBODY), sys.executable, "-c", PERMITTED_ONLY]
    heard = attach(place, prefix, agent=NOBODY)
    assert_seen(heard)
    assert "WARNING" not in heard.said, heard.said


@pytest.mark.parametrize("missing", sorted(needs.LOADING.capabilities), ids=str)
def test_an_interpreter_with_the_capabilities_of_the_image_runs_with_fewer_and_says_which_are_missing(
    missing: Capability, place: Path
) -> None:
    setcap = re.search(r"setcap (\S+) ", (ROOT / "deploy" / "Dockerfile").read_text())
    assert setcap is not None
    if shutil.which("setcap") is None:
        pytest.skip("needs setcap: apt-get install libcap2-bin")
    interpreter = interpreter_in(place)
    subprocess.run(["setcap", setcap[1], interpreter], check=True)
    command = [*limited(KEPT - {missing}), interpreter, OTELGPU, "check", "--quick"]
    reported = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert reported.returncode == 1, reported.stderr
    assert f"missing: {missing}\n" in reported.stdout


def interpreter_in(folder: Path) -> Path:
    """A copy of this one in an environment with the same packages."""
    (folder / "bin").mkdir()
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), folder)
    (folder / "lib").symlink_to(Path(sys.prefix, "lib"))
    return Path(shutil.copy(Path(sys.executable).resolve(), folder / "bin" / "python3"))


def test_another_user_without_capabilities_gets_lines_and_no_traceback(place: Path) -> None:
    """Nobody may not even look into tracefs; Python and the checkout are opened before."""
    program = (
        "import os, sys; from otelgpu.cli import check; from otelgpu.kernel import features\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "print([f.remedy for f in features.survey() if f.name == 'tracefs' and not f.present])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    if os.access("/sys/kernel/tracing", os.X_OK) and Path("/sys/kernel/tracing").stat().st_mode & 0o7:
        pytest.skip("tracefs is open to everybody here")
    assert "CAP_DAC_READ_SEARCH" in done.stdout, done.stderr
