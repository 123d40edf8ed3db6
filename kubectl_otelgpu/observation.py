"""A Job from its creation to its end: made, awaited, listened to, its result fetched, deleted whatever happens.

Everything that waits looks at ``stop``, which a signal sets: the Job is deleted then too. Who is killed outright leaves
it to the cluster, which ends the Job at its deadline and deletes it ``ttlSecondsAfterFinished`` later.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kubectl_otelgpu import job
from kubectl_otelgpu.client import Client
from kubectl_otelgpu.faults import Fault, Interrupted, of_events, of_exit, of_pod
from kubectl_otelgpu.results import fetch
from kubectl_otelgpu.target import Target, changed, status_of

_POLL_S: Final = 1.0
_PATIENCE_S: Final = 60.0
"""How long the API server may be out of reach before it is given up."""
_SCHEDULING_S: Final = 5.0
_EVENTS_S: Final = 2.0
_LONGEST_LOG: Final = 10_000  # lines

Say = Callable[[str], None]


def discard(line: str) -> None:
    """What a Job says where that is the result, and printed whole."""


def printable(text: str) -> str:
    """A line of a pod's without what a terminal would obey."""
    return "".join(
        each if each.isprintable() or each == "\t" else "\N{REPLACEMENT CHARACTER}" for each in text
    )


class Observation:
    """One Job for one target. ``say`` is given each line of what happens."""

    def __init__(
        self,
        client: Client,
        name: str,
        target: Target,
        order: job.Order,
        namespace: str,
        say: Say,
        stop: threading.Event,
    ) -> None:
        self.name = name
        self.pod = ""
        self.log: list[str] = []
        self.lasted = ("", "")  # when otelgpu's container began and ended, as the API server writes it
        self._client, self._target, self._order = client, target, order
        self._namespace, self._say, self._stop = namespace, say, stop
        self._unreachable_since: float | None = None
        self._is_left = False

    def __enter__(self) -> Observation:
        """Make the Job."""
        try:
            self._client.create(job.manifest(self.name, self._namespace, self._target, self._order))
        except Fault:
            self.__exit__()  # an answer that was lost may have been a yes
            raise
        self._say(f"job {self.name} in namespace {self._namespace}, on node {self._target.node}")
        return self

    def __exit__(self, *_: object) -> None:
        """Delete it, unless it was left, and wait until its pod is gone."""
        if self._is_left:
            return
        try:
            self._client.delete_job(self.name, self._namespace)
        except Fault as fault:
            self._say(
                f"job {self.name} could not be deleted ({fault.message}); the cluster deletes it "
                f"{self._order.ttl} s after it has ended"
            )

    def run(self) -> None:
        """Return when otelgpu has ended well. Raises :class:`Fault` on everything else."""
        self.await_start()
        follower = threading.Thread(target=self._follow, daemon=True)
        follower.start()
        terminated = self._await_end()
        follower.join(10)
        self.lasted = terminated.get("startedAt") or "", terminated.get("finishedAt") or ""
        if fault := of_exit(terminated, "\n".join(self.log), self._order.memory_limit):
            raise fault

    def leave(self) -> None:
        """It goes on when this ends."""
        self._is_left = True

    def fetch(self, name: str, local: Path) -> int:
        """A result to a file here; its size in bytes."""
        return fetch(self._client, self.pod, self._namespace, name, local, self._stop)

    def execute(self, *command: str) -> str:
        """Standard output of a command beside the results, which has no capabilities."""
        return self._client.execute(self.pod, self._namespace, job.KEEPER, *command)

    def note_change(self) -> None:
        """Say what became of the target in the middle."""
        if not self._target.pod:
            return
        try:
            now: dict[str, Any] | None = self._client.pod(self._target.pod, self._target.namespace)
        except Fault as fault:
            if not fault.message.startswith("there is no pod"):
                return
            now = None
        if line := changed(self._target, now):
            self._say(line)

    def await_start(self) -> None:
        """Return when otelgpu runs, or has ended. Raises :class:`Fault` where it does not begin."""
        begun = time.monotonic()
        pod: Mapping[str, Any] | None = None
        while True:
            waited = time.monotonic() - begun
            pod = self._look()
            if pod is not None:
                self.pod = pod["metadata"]["name"]
                if status_of(pod, job.OBSERVER).get("state", {}).keys() & {"running", "terminated"}:
                    return
                fault = of_pod(pod, self._target.node)
                if fault is not None and (waited > _SCHEDULING_S or "placed" not in fault.message):
                    raise fault
            elif waited > _EVENTS_S and (refused := self._refused()):
                raise refused
            if waited > job.START_S:
                phase = pod.get("status", {}).get("phase", "") if pod else "no pod"
                raise Fault(
                    f"node {self._target.node} did not start the pod within {job.START_S} s ({phase})",
                    f"is it ready? kubectl describe node {self._target.node}",
                )
            self._wait()

    def _refused(self) -> Fault | None:
        """Why there is no pod yet."""
        about = f"involvedObject.kind=Job,involvedObject.name={self.name}"
        try:
            events = self._client.items("events", self._namespace, "--field-selector", about)
        except Fault:
            return None
        return of_events(events, self._namespace)

    def _await_end(self) -> Mapping[str, Any]:
        """The state ``terminated`` of otelgpu's container."""
        limit = time.monotonic() + job.START_S + self._order.seconds + job.FINISH_S
        while True:
            pod = self._look()
            if pod is None:
                if self._unreachable_since is None:
                    raise Fault(
                        f"the pod of job {self.name} was deleted in the middle",
                        f"by hand, or node {self._target.node} was drained",
                    )
            else:
                terminated = status_of(pod, job.OBSERVER).get("state", {}).get("terminated")
                if terminated:
                    return dict(terminated)
                if fault := of_pod(pod, self._target.node):
                    raise fault
            if time.monotonic() > limit:
                raise Fault("otelgpu did not end in time")
            self._wait()

    def _look(self) -> Mapping[str, Any] | None:
        """The Job's pod; None where there is none, or for a while where nobody answers."""
        try:
            pods = self._client.items("pods", self._namespace, "-l", f"job-name={self.name}")
        except Fault as fault:
            now = time.monotonic()
            self._unreachable_since = self._unreachable_since or now
            if not fault.transient or now - self._unreachable_since > _PATIENCE_S:
                raise
            return None
        self._unreachable_since = None
        return pods[0] if pods else None

    def _wait(self) -> None:
        if self._stop.wait(_POLL_S):
            raise Interrupted

    def _follow(self) -> None:
        """Each line of otelgpu's once, over as many connections as that takes."""
        arguments = ("logs", "-f", self.pod, "-n", self._namespace, "-c", job.OBSERVER)
        while not self._stop.is_set():
            with self._client.stream(*arguments) as source:
                assert source.stdout is not None
                self._take_lines(source)
            try:
                pod = self._look()
            except Fault:
                return
            if pod is None or status_of(pod, job.OBSERVER).get("state", {}).get("terminated"):
                return
            self._stop.wait(_POLL_S)

    def _take_lines(self, source: subprocess.Popen[bytes]) -> None:
        assert source.stdout is not None
        for number, raw in enumerate(source.stdout):
            if self._stop.is_set() or number >= _LONGEST_LOG:
                source.kill()
                return
            if number >= len(self.log):
                self.log.append(printable(raw.decode(errors="replace").rstrip("\r\n")))
                self._say(self.log[-1])
