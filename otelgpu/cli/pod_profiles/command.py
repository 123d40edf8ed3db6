"""``otelgpu profile-pods``: look at what pods ask for, have it taken, and report what became of it."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Final

import click
import msgspec

from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.logs import say
from otelgpu.cli.parameters import Duration
from otelgpu.cli.pod_profiles.children import Ended, ForkedChild
from otelgpu.cli.pod_profiles.kept_file import KeptFile
from otelgpu.cli.pod_profiles.outcomes import Outcome, Result, sentence
from otelgpu.cli.pod_profiles.requests import Change, Limits, Requests
from otelgpu.errors import OtelgpuError
from otelgpu.families.switches import names
from otelgpu.families.switches.poll.switch_file import SwitchFile
from otelgpu.memory_limit import Container
from otelgpu.model.switches import PodSwitch, SwitchesRead

_log = logging.getLogger("otelgpu.cli")

PATIENCE_S: Final = 120.0
"""Beyond its time, for attaching to large processes, names of functions, and writing; then it is killed."""
STOP_S: Final = 10.0
"""For a profile to end early, when this program ends."""
REPORT_S: Final = 30.0
REPORTS_EVERY_S: Final = 15.0
"""What sends events takes a second of CPU: refusals of who asks again and again are sent together."""
MOST_REFUSALS: Final = 20
"""That wait to be reported; the others are counted in the log."""
_TURN_S: Final = 1.0


class PodProfiles:
    """One profile at a time. Raises :class:`OtelgpuError` where what is kept in ``folder`` cannot be written."""

    def __init__(self, folder: Path, limits: Limits, *, most_files: int, config_file: Path | None) -> None:
        self._folder, self._most_files, self._config_file = folder, most_files, config_file
        self._file = KeptFile(folder)
        self.requests = Requests(limits, self._file.read())
        self._file.write(self.requests.kept)  # so that a folder which cannot be written to is found at once
        self._taking: ForkedChild | None = None
        self._deadline_s = math.inf
        self._asked_to_end = False
        self._reporting: ForkedChild | None = None
        self._next_report_s = 0.0
        self._waiting: list[Outcome] = []
        self._withheld = 0
        self._container, self._kills_before = Container(), 0
        if self.requests.kept.current is not None:  # it was being taken when this program was ended
            self._end(names.AGENT_ENDED)

    def turn(self, seen: list[SwitchesRead]) -> None:
        """Once a second. ``seen``: what is asked for now, if that has changed."""
        for each in seen:
            for change in self.requests.read(each.switches, time.time()):
                self._note(change)
                if change.state == names.BEGAN:
                    self._begin(change.switch, change.seconds)
        self._look_after()
        self._keep()
        self._report()

    def close(self) -> None:
        """End what is under way, and report it."""
        if self._taking is not None:
            self._ask_to_end(self._taking)
            self._conclude(self._taking.wait(STOP_S), names.AGENT_ENDED)
        self._keep()
        self._next_report_s = 0.0
        if self._reporting is not None:
            self._reporting.wait(STOP_S)
            self._reporting = None
        self._report()
        if self._reporting is not None:
            self._reporting.wait(STOP_S)

    def _begin(self, switch: PodSwitch, seconds: float) -> None:
        self._keep()  # before anything can go wrong
        self._deadline_s, self._asked_to_end = seconds + PATIENCE_S, False
        self._kills_before = self._container.kills

        def take() -> bytes:
            from otelgpu.cli.pod_profiles import taking  # all that a profile needs: this program stays small

            order = taking.Order(
                switch=switch,
                seconds=seconds,
                folder=self._folder,
                most_files=self._most_files,
                config_file=self._config_file,
            )
            return taking.take(order)

        self._taking = ForkedChild(take)

    def _keep(self) -> None:
        try:
            self._file.write(self.requests.kept)
        except OtelgpuError as error:  # a full disk: whoever ended would have the agent's pod not ready
            _log.warning("%s; what was decided is forgotten when this program ends", error)

    def _look_after(self) -> None:
        if self._taking is None:
            return
        ended = self._taking.look()
        if ended is not None:
            self._conclude(ended, names.WITHDRAWN if self.requests.is_withdrawn else names.OVER)
        elif self._taking.age_s > self._deadline_s:
            self._taking.signal(signal.SIGKILL)
        elif self.requests.is_withdrawn:
            self._ask_to_end(self._taking)

    def _ask_to_end(self, taking: ForkedChild) -> None:
        """Once: asked a second time, a profile is abandoned."""
        if not self._asked_to_end:
            self._asked_to_end = True
            self._deadline_s = min(self._deadline_s, taking.age_s + PATIENCE_S)
            taking.signal(signal.SIGTERM)

    def _conclude(self, ended: Ended, reason: str) -> None:
        self._taking = None
        try:
            result = msgspec.json.decode(ended.returned, type=Result)
        except msgspec.MsgspecError:  # it was killed, or is a fault of ours, which its traceback shows
            result = Result(error=f"what took it ended {self._how(ended)}")
        self._end(names.FAILED if result.error and reason == names.OVER else reason, result)

    def _how(self, ended: Ended) -> str:
        if ended.code == -signal.SIGKILL and self._container.kills > self._kills_before:
            return f"for want of memory: its container may have {self._container.limit_bytes >> 20} MiB"
        return f"by signal {-ended.code}" if ended.code < 0 else f"with code {ended.code}"

    def _end(self, reason: str, result: Result | None = None) -> None:
        self._note(self.requests.end(time.time(), reason), result)

    def _note(self, change: Change, result: Result | None = None) -> None:
        outcome = Outcome(change=change, time_unix_ns=time.time_ns(), result=result)
        if change.state == names.REFUSED and len(self._waiting) >= MOST_REFUSALS:
            self._withheld += 1
            return
        say(sentence(outcome))
        self._waiting.append(outcome)

    def _report(self) -> None:
        if self._reporting is not None:
            if (ended := self._reporting.look()) is not None:
                self._reporting = None
                if ended.code < 0:  # what it says itself is in the log
                    _log.warning(
                        "events of requests for profiles may be lost: their sender ended %s", self._how(ended)
                    )
            elif self._reporting.age_s > REPORT_S:
                self._reporting.signal(signal.SIGKILL)
        now_s = time.monotonic()
        may_wait = all(each.change.state == names.REFUSED for each in self._waiting)
        if self._reporting is not None or (may_wait and now_s < self._next_report_s) or not self._waiting:
            return
        if self._withheld:
            _log.warning("%d more requests for profiles were refused", self._withheld)
        outcomes, self._waiting, self._withheld = tuple(self._waiting), [], 0
        self._next_report_s = now_s + REPORTS_EVERY_S

        def report() -> bytes:
            from otelgpu.cli.pod_profiles import reporting  # likewise

            return reporting.report(outcomes, self._config_file)

        self._reporting = ForkedChild(report)


@contextmanager
def until_ended() -> Iterator[Event]:
    """An event that Ctrl-C and SIGTERM set; the second of them ends this program at once."""
    stopped = Event()

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_settings(config_file: Path | None) -> None:
    """Raises :class:`OtelgpuError` with what a child says is wrong with them."""

    def check() -> bytes:
        from otelgpu.cli.pod_profiles import reporting  # likewise

        return reporting.check(config_file)

    ended = ForkedChild(check).wait(REPORT_S)
    if ended.code or ended.returned:
        raise OtelgpuError(ended.returned.decode("utf-8", "replace") or "the settings could not be read")


@click.command("profile-pods", cls=HeadedCommand)
@click.option(
    "--requests",
    "requested",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What otelgpu watch-pods --profiles writes.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where profiles are left, as pprof, unless the settings have the agent send its own.",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar="OTELGPU_CONFIG",
    help="The agent's settings: where events and profiles go.",
)
@click.option(
    "--longest",
    "longest_s",
    type=Duration(above=True),
    default=60.0,
    metavar="TIME",
    help="No profile may be asked for that is longer (default 60 s).",
)
@click.option(
    "--pause",
    "pause_s",
    type=Duration(),
    default=60.0,
    metavar="TIME",
    help="From the end of one profile on the node to the next (default 60 s).",
)
@click.option(
    "--keep",
    "most_files",
    type=click.IntRange(min=1, max=1000),
    default=8,
    metavar="N",
    help="Profiles that stay in DIR, of 8 MiB at most: the latest (default 8).",
)
def profile_pods(
    requested: Path,
    folder: Path,
    config_file: Path | None,
    longest_s: float,
    pause_s: float,
    most_files: int,
) -> None:
    """Take profiles of this node's pods that ask for one by an annotation, one at a time, until Ctrl-C.

    Runs beside the agent, with the same capabilities. Python and CPU time are sampled, as otelgpu profile does. Each
    profile that began, ended or was refused is an event, sent where the agent sends.

    \b
    Examples:
      otelgpu profile-pods --requests /run/otelgpu/profiles.json -o /var/lib/otelgpu
      kubectl annotate pod llm-server-7d4 otelgpu.io/profile=30s       # on the other side
    """
    if not os.path.isdir(folder):
        raise OtelgpuError(f"{folder} is no folder")
    check_settings(config_file)
    say(f"profiles of pods that {requested} asks for, {longest_s:g} s at most; Ctrl-C ends it")
    file = SwitchFile(requested)
    profiles = PodProfiles(
        folder, Limits(longest_s=longest_s, pause_s=pause_s), most_files=most_files, config_file=config_file
    )
    with until_ended() as stopped:
        while True:
            seen = [each for each in file.collect(time.monotonic_ns()) if isinstance(each, SwitchesRead)]
            profiles.turn(seen)
            if stopped.wait(_TURN_S):
                break
        profiles.close()
