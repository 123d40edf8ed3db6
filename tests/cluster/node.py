"""The one-node Kubernetes of tools/cluster.sh, for tests: started by up.sh, ended by down.sh.

Images are those of tools/image.sh, handed to the node's containerd as files: nothing is pulled. The agent's gets the
package of this checkout: only its dependencies have to be as new. The Collector's is made of the program that
tools/backends.sh built. No kube-proxy and no DNS run: what a manifest reaches by a Service's name is reached by a pod's
address here (:meth:`Cluster.pod_address`).

Each has a network of its own where the tests are root. Of nodes one at a time on a machine, as all have the cgroup
kubepods: who comes second waits. ``OTELGPU_CLUSTER=FOLDER`` names a node that is to be started there, or is up there
already, and stays; for who works on the tests. By hand, in its network: ``nsenter -n -t $(cat FOLDER/etcd.pid)``,
before ``kubectl …`` as before ``tests/cluster/down.sh FOLDER``, which ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from tests.backends.programs import CACHE as BACKENDS
from tests.cluster.oci import write_image
from tests.rig.bpf_objects import Kind, orphans
from tests.rig.fakes import ROOT
from tests.rig.isolation import own_network
from tests.rig.llm_server import RigError
from tests.rig.pods import CACHE as IMAGES
from tests.rig.pods import missing_image

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "otelgpu", "k8s")
HERE: Final = Path(__file__).parent
IMAGE: Final = "docker.io/library/otelgpu:0.1.0"
SERVICE_IMAGE: Final = "docker.io/library/llm-server:1"
COLLECTOR_IMAGE: Final = "docker.io/otel/opentelemetry-collector-contrib:0.158.0"
BUSYBOX: Final = "docker.io/rig/busybox:1"
NODE: Final = "node-a"
_WAIT_S: Final = 120.0
_LOCK: Final = Path("/run/otelgpu-cluster.lock")
_COMING: Final = "img/coming"
"""While it is there, up.sh waits for images."""

_OF_CHECKOUT: Final = (
    "FROM localhost/otelgpu\nCOPY --chmod=0755 otelgpu /opt/otelgpu/lib/python3.11/site-packages/otelgpu\n"
)
_BUILD: Final = "build -q --isolation=chroot --pull=never -f -"

_LOAD: Final = (
    "import http.client, json, time\n"
    "while True:\n"
    "    try:\n"
    "        c = http.client.HTTPConnection('127.0.0.1', 8000, timeout=9)\n"
    "        c.request('POST', '/v1/completions', json.dumps({'model': 'm', 'prompt': 'a b', 'max_tokens': 3}),\n"
    "                  {'content-type': 'application/json'})\n"
    "        c.getresponse().read()\n"
    "    except OSError:\n"
    "        time.sleep(0.3)\n"
    "    time.sleep(0.05)\n"
)

Who = Literal["admin", "developer"]


def missing_api_server() -> str | None:
    """Why no API server can be started here, and what to do; None when one can be."""
    return _missing("etcd", "kube-apiserver", "kubectl")


def missing_cluster() -> str | None:
    """Why no node can be started here, and what to do; None when one can be."""
    if os.geteuid() != 0:
        return "needs root, to run a node"
    return _missing() or missing_image()


def _missing(*programs: str) -> str | None:
    asked = subprocess.run(
        [ROOT / "tools/cluster.sh", "--ready", *programs], capture_output=True, text=True, check=False
    )
    return asked.stderr.strip() if asked.returncode else None


class ApiServer:
    """etcd and the API server: objects are taken in or refused, and nothing acts on them."""

    PARTS: ClassVar[tuple[str, ...]] = ("api",)
    KEPT: ClassVar[str | None] = None

    def __init__(self) -> None:
        self._until_stopped = contextlib.ExitStack()
        self.folder = Path(self.KEPT or tempfile.mkdtemp(prefix="otelgpu-rig-"))  # short: it has sockets
        running = self.folder / "etcd.pid"
        first = int(running.read_text()) if running.exists() else None
        if os.geteuid() == 0:
            self._until_stopped.enter_context(own_network(first))
        if first is not None:
            return
        self.folder.mkdir(exist_ok=True)
        self.claim()
        up: list[str | Path] = [HERE / "up.sh", self.folder, *self.PARTS]
        with subprocess.Popen(up, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as starting:
            try:
                self.prepare()
            except BaseException:
                starting.kill()
                self._end()
                raise
            _, said = starting.communicate()
        if starting.returncode:
            logs = {log.name: log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log")}
            self._end()
            raise RigError(said + "".join(f"\n{name}: {end}" for name, end in logs.items()))

    def claim(self) -> None:
        """What is done before it is started."""

    def prepare(self) -> None:
        """What is done while it starts."""

    def stop(self) -> None:
        """End all of it, and forget it."""
        if not self.KEPT:
            self._end()
        self._until_stopped.close()

    def _end(self) -> None:
        subprocess.run([HERE / "down.sh", self.folder], check=False, timeout=240, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kubeconfig(self, who: Who = "admin") -> Path:
        """A file for ``KUBECONFIG``."""
        return self.folder / ("kubeconfig" if who == "admin" else f"kubeconfig-{who}")

    def environment(self, who: Who = "admin") -> dict[str, str]:
        """For programs that call ``kubectl``."""
        return os.environ | {
            "KUBECONFIG": str(self.kubeconfig(who)),
            "PATH": f"{CACHE / 'bin'}:{os.environ['PATH']}",
        }

    def kubectl(self, *arguments: str, who: Who = "admin", given: str | None = None) -> str:
        """Standard output. Raises :class:`RigError` with what it said instead."""
        done = subprocess.run(
            [CACHE / "bin/kubectl", *arguments],
            input=given, env=self.environment(who), capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        if done.returncode:
            raise RigError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def items(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        """Objects of a kind, of all namespaces unless ``-n`` is among the arguments."""
        where = () if "-n" in arguments else ("-A",)
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *where, *arguments, "-o", "json"))[
            "items"
        ]
        return found

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Make or change them."""
        document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", given=json.dumps(document))

    def namespace(self, name: str, level: str = "") -> None:
        """``level``: of the Pod Security Standards, enforced."""
        labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        account = {"name": "default", "namespace": name}  # which a controller would make, a moment later
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})

    def pod(self, name: str, namespace: str) -> dict[str, Any]:
        """As the API server describes it."""
        found: dict[str, Any] = json.loads(self.kubectl("-n", namespace, "get", "pod", name, "-o", "json"))
        return found


class Cluster(ApiServer):
    """A node too."""

    PARTS = ()
    KEPT = os.environ.get("OTELGPU_CLUSTER")

    def claim(self) -> None:
        """Wait for who has a node; say that images are to come."""
        lock = self._until_stopped.enter_context(_LOCK.open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        (self.folder / "img").mkdir()
        (self.folder / _COMING).touch()

    def prepare(self) -> None:
        """Save the images that it is to have."""
        podman = ["podman", "--root", str(IMAGES / "storage"), "--runroot", "/run/otelgpu-image"]
        build: list[str | Path] = [*podman, "--runtime=crun", *_BUILD.split(), "-t", IMAGE, ROOT]
        subprocess.run(build, input=_OF_CHECKOUT, text=True, stdout=subprocess.DEVNULL, check=True)
        subprocess.run([*podman, "tag", "localhost/otelgpu-example-service", SERVICE_IMAGE], check=True)
        save = [*podman, "save", "-q", "--format", "docker-archive", "--multi-image-archive"]
        subprocess.run([*save, "-o", str(self.folder / "img/built.tar"), IMAGE, SERVICE_IMAGE], check=True)
        subprocess.run([*podman, "rmi", IMAGE], stdout=subprocess.DEVNULL, check=True)
        if (BACKENDS / "otelcol").exists():
            root = self.folder / "rootfs/collector"
            root.mkdir(parents=True)
            shutil.copy(BACKENDS / "otelcol", root / "otelcol")
            write_image(root, COLLECTOR_IMAGE, self.folder / "img/collector.tar", ["/otelcol"])
        (self.folder / _COMING).unlink()

    def wait_ready(self, pod: str, namespace: str) -> dict[str, Any]:
        """The pod, once it is ready."""
        ready = ("wait", "--for=condition=Ready", f"pod/{pod}", f"--timeout={_WAIT_S:g}s")
        self.kubectl("-n", namespace, *ready)
        return self.pod(pod, namespace)

    def pod_address(self, pod: str, namespace: str) -> str:
        """IP."""
        return str(self.wait_ready(pod, namespace)["status"]["podIP"])


def wait_until(holds: Callable[[], bool], what: str, limit_s: float = _WAIT_S) -> None:
    """Return when it does. Raises :class:`RigError` that names ``what``."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise RigError(f"waited {limit_s:g} s for {what}")
        time.sleep(0.3)


def left_on(cluster: Cluster, apart_from: str = "") -> set[str]:
    """Jobs and pods, and the containers that containerd runs; not those of the namespace ``apart_from``."""
    objects = [each["metadata"] for each in [*cluster.items("jobs"), *cluster.items("pods")]]
    others = _ctr(cluster, "containers", f'labels."io.kubernetes.pod.namespace"!="{apart_from}"')
    return {each["name"] for each in objects if each["namespace"] != apart_from} | (
        _ctr(cluster, "tasks") & others
    )


def unowned(before: set[tuple[Kind, int]]) -> set[tuple[Kind, int]]:
    """Programs of BPF and links that have come since ``before`` and that no process has open: nobody will end them.

    Not maps: of a map in a map nobody has the inner one open.
    """
    return {each for each in orphans(before) if each[0] in ("program", "link")}


def kept_on(cluster: Cluster) -> set[str]:
    """And what the kubelet has of each pod, for a minute after it has ended: containers, a folder, cgroups.

    Not the container that held a pod's namespaces: the kubelet takes a minute more for that.
    """
    cgroups = Path("/sys/fs/cgroup")  # version 2, or each controller's
    folders = [*cgroups.glob("kubepods/**/pod*"), *cgroups.glob("*/kubepods/**/pod*")]
    folders += (cluster.folder / "kubelet/pods").iterdir()
    containers = _ctr(cluster, "containers", "image!=docker.io/rig/pause:1")
    return left_on(cluster) | containers | {each.name for each in folders}


def _ctr(cluster: Cluster, what: str, *filters: str) -> set[str]:
    listing = ["-a", str(cluster.folder / "ctd/c.sock"), "-n", "k8s.io", what, "ls", "-q", *filters]
    asked = subprocess.run([CACHE / "bin/ctr", *listing], capture_output=True, text=True, check=True)
    return set(asked.stdout.split())


def simple_pod(name: str, image: str, command: Sequence[str] = (), **spec: Any) -> dict[str, Any]:
    """A pod of one container, called ``server``."""
    container: dict[str, Any] = {"name": "server", "image": image, "imagePullPolicy": "Never"}
    if command:
        container["command"] = list(command)
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


def service_pod(name: str) -> dict[str, Any]:
    """The example server, and beside it, in the container ``load``, who sends it requests without end."""
    made = simple_pod(name, SERVICE_IMAGE)
    load = {"name": "load", "image": SERVICE_IMAGE, "imagePullPolicy": "Never"}
    made["spec"]["containers"].append(load | {"command": ["/opt/service/bin/python", "-c", _LOAD]})
    return made
