"""The state of attaching, by process: what forks, execs and ends make of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from otelgpu.processes.attachments import Attachments
from otelgpu.processes.probes import ProbedFile

OWN = os.getpid()


def probed_file(*, refused: tuple[str, ...] = ()) -> ProbedFile:
    return ProbedFile(
        path="lib",
        library="lib",
        identity=(1, 2, 3),
        symbols=("f",),
        refused=refused,
        ready_ns=5,
        used_ns=5,
        links=[],
    )


def counts(attachments: Attachments, tgid: int) -> tuple[int, int, int]:
    found = dict(attachments.read())[tgid]
    return found.attached, found.blind, found.failed


def test_each_file_counts_once_under_its_worst_state() -> None:
    attachments = Attachments()
    good, late, bad = probed_file(), probed_file(), probed_file(refused=("no",))
    for each, blind in ((good, False), (good, False), (late, True), (late, False), (bad, True)):
        attachments.note(OWN, each, blind=blind)
    attachments.note(OWN, None)
    assert counts(attachments, OWN) == (1, 1, 1)


def test_a_child_has_what_its_parent_has_and_was_never_blind() -> None:
    attachments = Attachments()
    attachments.note(1, probed_file(), blind=True)
    attachments.inherit(1, 2)
    assert (counts(attachments, 1), counts(attachments, 2)) == ((0, 1, 0), (1, 0, 0))


def test_probes_that_a_process_has_for_itself_come_and_go_with_it() -> None:
    attachments, found = Attachments(), list[tuple[str, int]]()
    mine: Any = SimpleNamespace(
        enter=lambda tgid: found.append(("on", tgid)), leave=lambda tgid: found.append(("off", tgid))
    )
    file = probed_file()
    file.of_process = mine
    for _ in range(2):
        attachments.note(1, file)
    attachments.inherit(1, 2)
    attachments.forget(1)
    assert found == [("on", 1), ("on", 2), ("off", 1)]
    assert counts(attachments, 2) == (0, 1, 0)  # until it had its own


def test_what_is_forgotten_is_reported_no_more() -> None:
    attachments = Attachments()
    attachments.note(OWN, probed_file())
    attachments.forget(OWN)
    attachments.forget(OWN)
    assert dict(attachments.read()) == {}


def test_a_process_has_the_name_of_its_executable() -> None:
    attachments = Attachments()
    attachments.note(OWN, probed_file())
    attachments.note(2**22 + 1, probed_file())
    names = {tgid: each.executable for tgid, each in attachments.read()}
    assert names == {OWN: Path(sys.executable).resolve().name, 2**22 + 1: ""}
