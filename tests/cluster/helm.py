"""A real Helm that installs the chart, for tests: ``tools/backends.sh helm`` builds it. It keeps nothing at home."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.cluster.node import ApiServer, Who
from tests.deploy.manifests import CHART, HELM, HelmError, collector_files

RELEASE: Final = "otelgpu"
NAMESPACE: Final = "otelgpu"
_PASSING: Final = ("events", "events.events.k8s.io", "leases.coordination.k8s.io")
"""Kinds of which objects come and go by themselves."""


class Helm:
    """Commands of Helm before an API server, as one of its users."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._server, self._folder = server, folder

    def __call__(self, *words: str | Path, who: Who = "admin") -> str:
        """What it printed. Raises :class:`HelmError` with what it said instead."""
        homes = {
            f"HELM_{what}_HOME": str(self._folder / what.lower()) for what in ("CACHE", "CONFIG", "DATA")
        }
        done = subprocess.run(
            [HELM, "--namespace", NAMESPACE, *words],
            env=self._server.environment(who) | homes, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        if done.returncode:
            raise HelmError(done.stderr + done.stdout)
        return done.stdout

    def put(self, verb: str, *options: str, mode: str = "daemonset", who: Who = "admin") -> str:
        """``install`` or ``upgrade`` the chart, with the Collector's files of the repository."""
        return self(verb, RELEASE, CHART, f"--set=mode={mode}", *collector_files(mode), *options, who=who)

    def history(self) -> list[tuple[int, str]]:
        """Revisions and their states."""
        listed: list[dict[str, Any]] = json.loads(self("history", RELEASE, "-o", "json"))
        return [(each["revision"], each["status"]) for each in listed]


def objects_of(server: ApiServer) -> set[str]:
    """Everything that the API server has, as namespace/kind/name."""
    kinds = server.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    columns = "-o=custom-columns=:metadata.namespace,:kind,:metadata.name"
    wanted = ",".join(kind for kind in kinds if kind not in _PASSING)
    listed = server.kubectl("get", wanted, "-A", "--no-headers", columns)
    return {"/".join(line.split()) for line in listed.splitlines() if line.strip()}
