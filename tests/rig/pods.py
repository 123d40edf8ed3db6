"""A pod of deploy/kubernetes on this machine, of the images that tools/image.sh builds.

In: a pod's specification as in a manifest. Out: its containers, run by runc in the pod's PID namespace with what
containerd's CRI plug-in would describe to it: user, capabilities, no_new_privs, read-only root, mounts, variables,
deploy/seccomp.json for a Localhost profile. Unlike in a cluster the network is the machine's, AppArmor and the
runtime's own seccomp profile are left out, and probes are asked by who starts the pod.

Sources: containerd 2.3, internal/cri/server/container_create_linux.go and pkg/oci/spec_opts.go.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.rig.fakes import ROOT
from tests.rig.llm_server import RigError

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "otelgpu", "image")
DOCKERFILE: Final = ROOT / "deploy" / "Dockerfile"
_PODMAN: Final = ("podman", "--root", str(CACHE / "storage"), "--runroot", "/run/otelgpu-image")
_STOP_TIMEOUT_S: Final = 30
_PROTECTED: Final = ["nosuid", "noexec", "nodev"]
_SYSTEM_MOUNTS: Final = (
    {"destination": "/proc", "type": "proc", "source": "proc", "options": _PROTECTED},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": [*_PROTECTED, "mode=1777"]},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*_PROTECTED, "ro"]},
)
_TMP: Final = {
    "destination": "/tmp",
    "type": "tmpfs",
    "source": "tmpfs",
    "options": [*_PROTECTED, "mode=1777"],
}


def missing_image() -> str | None:
    """Why no container of our images can be run here, and what to do; None when they can be."""
    if os.geteuid() != 0:
        return "needs root, to run containers"
    for program in ("podman", "runc"):
        if shutil.which(program) is None:
            return f"needs {program}: apt-get install --no-install-recommends {program}"
    if not (CACHE / "storage").exists() or _podman("image", "exists", "localhost/otelgpu").returncode:
        return f"no image in {CACHE}: run `make image`"
    built = CACHE / "built"
    if not built.exists() or not filecmp.cmp(DOCKERFILE, built, shallow=False):
        return f"the image in {CACHE} was built from another Dockerfile: run `make image`"
    return None


def image_config(name: str) -> dict[str, Any]:
    """What an image says of itself: User, Env, Entrypoint, Cmd, Healthcheck, Labels."""
    inspected = _podman("image", "inspect", "--format", "{{json .Config}}", f"localhost/{name}")
    if inspected.returncode:
        raise RigError(inspected.stderr)
    config: dict[str, Any] = json.loads(inspected.stdout)
    return config


@contextlib.contextmanager
def image_root(name: str) -> Iterator[Path]:
    """An image's files, until the end of the block."""
    mounted = _podman("image", "mount", f"localhost/{name}")
    if mounted.returncode:
        raise RigError(mounted.stderr)
    try:
        yield Path(mounted.stdout.strip())
    finally:
        _podman("image", "unmount", f"localhost/{name}")


def _podman(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_PODMAN, *arguments], capture_output=True, text=True, check=False, timeout=60)


class Pod:
    """A pod's PID namespace, or the machine's with ``hostPID``, and the containers that were started in it."""

    def __init__(self, spec: Mapping[str, Any], fields: Mapping[str, str], folder: Path) -> None:
        """``fields``: what the downward API answers, by fieldPath. ``folder``: for output and sockets."""
        self._spec = spec
        self._fields = fields
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self._sandbox: subprocess.Popen[bytes] | None = None
        self._pid_files: dict[str, Path] = {}
        self._identities: dict[str, str] = {}
        self.containers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Pod:
        if not self._spec.get("hostPID"):
            # The pause container: the first process of the namespace that the others join.
            self._sandbox = subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; exec sleep infinity"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
            assert self._sandbox.stdout is not None
            self._sandbox.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.containers)):
            self.stop(name)
        if self._sandbox is not None:
            self._sandbox.kill()
            self._sandbox.wait()
            assert self._sandbox.stdout is not None
            self._sandbox.stdout.close()
        self._stack.close()

    def start(
        self,
        name: str,
        image: str,
        environment: Mapping[str, str],
        arguments: Sequence[str] | None = None,
        *,
        identity: str | None = None,
    ) -> None:
        """Start a container of the specification; ``environment`` wins over its own, ``arguments`` over its args.

        ``identity``: a container's id of 64 hexadecimal digits, by which its cgroups are what a kubelet makes.
        """
        bundle = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="otelgpu-bundle-")))
        root = self._stack.enter_context(image_root(image))
        described = self._describe(name, image, root, environment, arguments)
        if identity is not None:
            described["linux"]["cgroupsPath"] = f"/kubepods/burstable/pod{uuid.uuid4()}/{identity}"
        (bundle / "config.json").write_text(json.dumps(described, indent=1))
        self._pid_files[name] = bundle / "pid"
        runc = [
            "runc",
            "--root",
            str(bundle / "state"),
            "run",
            "--bundle",
            str(bundle),
            "--pid-file",
            str(bundle / "pid"),
        ]
        identity = identity or f"otelgpu-{secrets.token_hex(6)}"  # of its cgroups too
        self._identities[name] = identity
        with open(self.folder / f"{name}.log", "wb") as log:
            self.containers[name] = subprocess.Popen(
                [*runc, identity], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def execute(self, name: str, *command: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command in a container that runs, as ``kubectl exec`` has it run."""
        runc = ["runc", "--root", str(self._pid_files[name].parent / "state"), "exec", self._identities[name]]
        return subprocess.run([*runc, *command], capture_output=True, check=False, timeout=60)

    def log(self, name: str) -> str:
        """What a container has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self, name: str) -> int:
        """Ask a container to end, wait, and give its exit status; a second time does nothing."""
        process = self.containers[name]
        if process.poll() is None:
            os.kill(int(self._pid_files[name].read_text()), signal.SIGTERM)
        try:
            return process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RigError(f"{name} did not end: {self.log(name)[-2000:]}") from None

    def _describe(
        self,
        name: str,
        image: str,
        root: Path,
        environment: Mapping[str, str],
        arguments: Sequence[str] | None,
    ) -> dict[str, Any]:
        """The OCI runtime specification's config.json."""
        each = self._container(name)
        config = image_config(image)
        security = {**self._spec.get("securityContext", {}), **each.get("securityContext", {})}
        capabilities = [f"CAP_{added}" for added in security.get("capabilities", {}).get("add", ())]
        uid, _, gid = str(config["User"]).partition(":")
        variables = dict(pair.split("=", 1) for pair in config["Env"])
        variables |= {entry["name"]: self._value(entry) for entry in each.get("env", ())}
        variables |= environment
        command = list(each.get("command") or config["Entrypoint"])
        if arguments or each.get("args") or not each.get("command"):
            command += arguments or each.get("args") or config.get("Cmd") or ()
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {
                    "uid": security.get("runAsUser", int(uid)),
                    "gid": security.get("runAsGroup", int(gid)),
                },
                "args": command,
                "env": [f"{key}={value}" for key, value in variables.items()],
                "cwd": config.get("WorkingDir") or "/",
                # No inheritable and no ambient ones: a user that is not root has them through files only.
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
                "noNewPrivileges": security.get("allowPrivilegeEscalation") is False,
            },
            "root": {"path": str(root), "readonly": True},
            "hostname": "pod",
            "mounts": [
                *_SYSTEM_MOUNTS,
                # No layer of the container's own is made here: where it might write, only /tmp can be written to.
                *([] if security.get("readOnlyRootFilesystem") else [_TMP]),
                *map(self._mount, each.get("volumeMounts", ())),
            ],
            "linux": {
                **self._seccomp(security),
                "namespaces": [{"type": "mount"}, {"type": "uts"}, {"type": "ipc"}, *self._pid_namespace()],
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            },
        }

    @staticmethod
    def _seccomp(security: Mapping[str, Any]) -> dict[str, Any]:
        if security.get("seccompProfile", {}).get("type") != "Localhost":
            return {}
        return {"seccomp": json.loads((ROOT / "deploy/seccomp.json").read_text())}

    def _container(self, name: str) -> dict[str, Any]:
        all_containers = [*self._spec.get("initContainers", ()), *self._spec["containers"]]
        return next(dict(each) for each in all_containers if each["name"] == name)

    def _value(self, entry: Mapping[str, Any]) -> str:
        if "value" in entry:
            return str(entry["value"])
        return self._fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]

    def _pid_namespace(self) -> list[dict[str, str]]:
        if self._sandbox is None:
            return []
        children = Path(f"/proc/{self._sandbox.pid}/task/{self._sandbox.pid}/children").read_text().split()
        return [{"type": "pid", "path": f"/proc/{children[0]}/ns/pid"}]

    def _mount(self, mount: Mapping[str, Any]) -> dict[str, Any]:
        volume = next(each for each in self._spec["volumes"] if each["name"] == mount["name"])
        options = ["nosuid", "nodev", "ro" if mount.get("readOnly") else "rw"]
        if "hostPath" in volume:
            bind = {"type": "bind", "source": volume["hostPath"]["path"]}
            return {"destination": mount["mountPath"], **bind, "options": ["rbind", *options]}
        if "emptyDir" in volume:
            shared = self.folder / f"volume-{mount['name']}"
            if not shared.exists():
                shared.mkdir()
                shared.chmod(0o777)
            bind = {"type": "bind", "source": str(shared)}
            return {"destination": mount["mountPath"], **bind, "options": ["rbind", *options]}
        raise RigError(f"volume {volume['name']} is of a kind that is not known here")
