"""``otelgpu watch-pods``: list, watch, and write what is asked for pods of this node whenever that changes."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import msgspec

from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.logs import say
from otelgpu.cli.pod_watch.api_server import ApiServer, Expired, Place
from otelgpu.cli.pod_watch.metadata import Metadata, switch_of
from otelgpu.errors import OtelgpuError
from otelgpu.model.switches import (
    DETAIL_ANNOTATION,
    MOST_PODS,
    PROFILE_ANNOTATION,
    PodSwitch,
    SwitchesWritten,
)

_log = logging.getLogger("otelgpu.cli")

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NODE_VARIABLE: Final = "OTELGPU_NODE_NAME"
_HOST_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"
_PORT_VARIABLE: Final = "KUBERNETES_SERVICE_PORT"
_SHORTEST_S: Final = 1.0
_LONGEST_S: Final = 60.0


class Switches:
    """What is asked for pods by ``annotation``, in ``path``: written anew, whole, each time that it changes."""

    def __init__(self, path: Path, annotation: str = DETAIL_ANNOTATION) -> None:
        self._path, self._annotation = path, annotation
        self._asked: dict[str, PodSwitch] = {}
        self._is_listed = False
        self._failures = 0
        self._written: bytes | None = None

    def replace(self, pods: Iterable[Metadata]) -> None:
        """These are all that there are."""
        found = (switch_of(each, self._annotation) for each in pods)
        self._asked = {each.uid: each for each in found if each is not None}
        self._is_listed = True
        self._write()

    def see(self, kind: str, pod: Metadata) -> None:
        """A pod is there, is another, or is gone."""
        asked = switch_of(pod, self._annotation) if kind != "DELETED" else None
        if asked is not None:
            self._asked[pod.uid] = asked
        elif self._asked.pop(pod.uid, None) is None:
            return
        self._write()

    def fail(self) -> None:
        """A try has failed: the agent counts it."""
        self._failures += 1
        self._write()

    def _write(self) -> None:
        kept = sorted(self._asked.values(), key=lambda each: each.uid)
        if len(kept) > MOST_PODS:
            _log.warning("%d pods are annotated: %d of them count", len(kept), MOST_PODS)
        switches = tuple(kept[:MOST_PODS]) if self._is_listed else None
        content = msgspec.json.encode(SwitchesWritten(switches=switches, failures=self._failures))
        if content == self._written:
            return
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(partial, self._path)
        except OSError as error:
            raise OtelgpuError(f"cannot write {self._path}: {error.strerror}") from error
        self._written = content


def follow(server: ApiServer, switches: Sequence[Switches], wait: Callable[[float], object]) -> None:
    """For ever: whoever ended would have its pod not ready, and the agent with it.

    Whatever fails is tried again, later and later, and counted in the files; what pods have asked for stays there
    meanwhile.
    """
    pause_s, said = _SHORTEST_S, ""
    while True:
        try:
            pods, version = server.list()
            for each in switches:
                each.replace(pods)
            while version:
                for kind, pod in server.watch(version):
                    version = pod.resource_version or version
                    for each in switches if kind != "BOOKMARK" else ():
                        each.see(kind, pod)
                pause_s, said = _SHORTEST_S, ""
                wait(pause_s)  # before the next: one that ends at once is not to be asked for without end
        except Expired:
            _log.debug("what was watched from is too long ago")
        except OtelgpuError as error:
            if str(error) != said:
                said = str(error)
                _log.warning("%s; it is tried again, at most %d s apart", error, _LONGEST_S)
            for each in switches:
                with suppress(OtelgpuError):  # that it cannot be written: said above, or by the next try
                    each.fail()
        wait(pause_s * random.uniform(0.5, 1.0))  # so that a thousand nodes do not come back at once
        pause_s = min(2 * pause_s, _LONGEST_S)


def place_of(
    url: str | None, token: Path | None, authority: Path | None, environ: Mapping[str, str]
) -> Place:
    """What was given, else that of the pod that this runs in. Raises :class:`OtelgpuError` where there is none."""
    if url is not None:
        return Place(url=url, token=token, authority=authority)
    host, port = environ.get(_HOST_VARIABLE, ""), environ.get(_PORT_VARIABLE, "443")
    if not host:
        raise OtelgpuError(
            "this is no pod of Kubernetes, so where is the API server?", "--server https://HOST:PORT"
        )
    host = f"[{host}]" if ":" in host else host
    return Place(
        url=f"https://{host}:{port}",
        token=token or _ACCOUNT / "token",
        authority=authority or _ACCOUNT / "ca.crt",
    )


@click.command("watch-pods", cls=HeadedCommand)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The agent's switch_file: on a volume that both have.",
)
@click.option(
    "--profiles",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that otelgpu profile-pods reads, likewise: annotations that ask for a profile.",
)
@click.option(
    "--node", envvar=_NODE_VARIABLE, required=True, help=f"Pods of this node (default: {_NODE_VARIABLE})."
)
@click.option("--server", metavar="URL", help="The API server (default: that of the pod's cluster).")
@click.option(
    "--token-file",
    "token",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Who asks (default: the pod's service account).",
)
@click.option(
    "--ca-file",
    "authority",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Whose certificate the server has (default: likewise).",
)
def watch_pods(
    output: Path,
    profiles: Path | None,
    node: str,
    server: str | None,
    token: Path | None,
    authority: Path | None,
) -> None:
    """Write what annotations of this node's pods ask of the agent into a file that it reads, until Ctrl-C.

    Runs beside the agent, with a service account that may list and watch pods, and without any capability: the agent
    has those and no account. Of pods only metadata is asked for.

    \b
    Examples:
      otelgpu watch-pods -o /run/otelgpu/switches.json
      otelgpu watch-pods -o s.json --node node-a --server http://127.0.0.1:8001     # kubectl proxy
    """
    place = place_of(server, token, authority, os.environ)
    api_server = ApiServer(place, node)
    if server is not None or token is not None or authority is not None:
        api_server.check()  # what was named is there, or is named wrong; what the kubelet mounts may come later
    say(f"annotations of the pods of {node}, from {place.url} to {output}; Ctrl-C ends it")
    files = [Switches(output)]
    if profiles is not None:
        files.append(Switches(profiles, PROFILE_ANNOTATION))
    follow(api_server, files, time.sleep)
