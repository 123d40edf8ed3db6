"""``kubectl`` as a program: what is asked of it, and its failures as :class:`~kubectl_otelgpu.faults.Fault`.

Each call runs in a process group of its own, so that Ctrl-C in a terminal is this program's alone to answer.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kubectl_otelgpu.faults import Fault, of_kubectl

PROGRAM_VARIABLE: Final = "OTELGPU_KUBECTL"
"""Names another program than ``kubectl``, ``oc`` for one."""
_REQUEST_S: Final = 20
_CALL_S: Final = 60


class Client:
    """``kubectl`` with what was said of the cluster: ``--context``, ``--kubeconfig``."""

    def __init__(self, connection: Sequence[str]) -> None:
        self._begin = [os.environ.get(PROGRAM_VARIABLE) or "kubectl", *connection]

    def call(self, *arguments: str, given: bytes | None = None, timeout_s: float = _CALL_S) -> str:
        """Standard output of one call. Raises :class:`Fault`."""
        command = [*self._begin, f"--request-timeout={_REQUEST_S}s", *arguments]
        try:
            done = subprocess.run(
                command, input=given, stdin=None if given is not None else subprocess.DEVNULL,
                capture_output=True, timeout=timeout_s, check=False, process_group=0,
            )  # fmt: skip
        except FileNotFoundError:
            raise Fault(
                f"there is no program {self._begin[0]}", "install kubectl, or name it in " + PROGRAM_VARIABLE
            ) from None
        except subprocess.TimeoutExpired:
            raise Fault(f"kubectl {arguments[0]} took more than {timeout_s:g} s", transient=True) from None
        if done.returncode:
            raise of_kubectl(done.stderr.decode(errors="replace"), f"kubectl {' '.join(arguments[:2])}")
        return done.stdout.decode(errors="replace")

    def stream(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A call of which the output is read as it comes; its errors are on ``stderr``."""
        return subprocess.Popen(
            [*self._begin, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
        )  # fmt: skip

    def replace_process(self, *arguments: str) -> None:
        """Become ``kubectl``, for what is interactive. Does not return."""
        os.execvp(self._begin[0], [*self._begin, *arguments])

    def items(self, kind: str, namespace: str, *arguments: str) -> list[dict[str, Any]]:
        """Objects of a kind; ``namespace`` "": of all namespaces."""
        where = ["-n", namespace] if namespace else ["--all-namespaces"]
        found: list[dict[str, Any]] = json.loads(self.call("get", kind, *where, *arguments, "-o", "json"))[
            "items"
        ]
        return found

    def pod(self, name: str, namespace: str) -> dict[str, Any]:
        """One pod. Raises :class:`Fault` where there is none."""
        found: dict[str, Any] = json.loads(self.call("get", "pod", name, "-n", namespace, "-o", "json"))
        return found

    def namespace(self) -> str:
        """The one of the context."""
        return self.call("config", "view", "--minify", "-o", "jsonpath={..namespace}").strip() or "default"

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Make an object. Raises :class:`Fault` where the server refuses it."""
        self.call("create", "-f", "-", given=json.dumps(manifest).encode())

    def execute(self, pod: str, namespace: str, container: str, *command: str) -> str:
        """Standard output of a command in a container."""
        return self.call("exec", pod, "-n", namespace, "-c", container, "--", *command, timeout_s=300)

    def delete_job(self, name: str, namespace: str) -> None:
        """And its pod; returns when both are gone, or after half a minute."""
        self.call(
            "delete",
            "job",
            name,
            "-n",
            namespace,
            "--ignore-not-found",
            "--cascade=foreground",
            "--timeout=30s",
        )
