"""``kubectl otelgpu`` as somebody uses it: the one file on PATH, and ``kubectl`` that finds it there."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.node import CACHE, ApiServer, Who
from tools.kubectl_plugin import NAME, build_program


class Plugin:
    """Installed in ``folder``, which is its working folder too; nothing of the checkout is on its path."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        program = folder / NAME
        program.write_bytes(build_program())
        program.chmod(0o755)

    def start(self, *arguments: str, who: Who = "developer") -> subprocess.Popen[str]:
        environment = self.server.environment(who)
        environment["PATH"] = f"{self.folder}:{environment['PATH']}"
        environment.pop("PYTHONPATH", None)
        return subprocess.Popen(
            [CACHE / "bin/kubectl", "otelgpu", *arguments],
            cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str, who: Who = "developer") -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, who=who) as process:
            out, err = process.communicate(timeout=200)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)
