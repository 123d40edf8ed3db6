"""otelgpu, and what it observes, with exactly the capabilities that a test names."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otelgpu.kernel.privileges.capabilities import Capability, held
from tests.kernel.observing import OTELGPU, cuda_calls, read_spans, said_at_start
from tests.rig import CudaClient, fake_cudart_path, start_cuda_client

AGENT_S: Final = 60
OTHER_USER: Final = 1000
NOBODY: Final = 65534
CALLS: Final = 23


def limited(capabilities: Collection[Capability], *, uid: int = 0) -> list[str]:
    """A command's prefix: root of a container that was given these, or another user who has them as ambient ones."""
    chosen = ",".join(["-all", *(f"+{each.name.lower()}" for each in capabilities)])
    sets = [f"--bounding-set={chosen}", f"--inh-caps={chosen}"]
    if uid:
        sets += [f"--reuid={uid}", f"--regid={uid}", "--clear-groups", f"--ambient-caps={chosen}"]
    return ["setpriv", *sets, "--"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a session said, and how many of each program's launches it saw."""

    said: str
    launches: Mapping[str, int]

    @property
    def began(self) -> bool:
        return "observing" in self.said


def _library(folder: Path, owner: int, mode: int) -> Path:
    path = folder / "libcudart.so.12"
    folder.mkdir()
    shutil.copy(fake_cudart_path(), path)
    path.chmod(mode)
    folder.chmod(mode | 0o111 if mode & 0o4 else mode)
    for each in (folder, path):
        os.chown(each, owner, owner)
    return path


@contextmanager
def programs(folder: Path, *, agent: int) -> Iterator[dict[str, CudaClient]]:
    """Programs that are each within reach of one privilege: ``agent`` is the user who will observe them.

    ``own``: nothing is special. ``contained``: of another user, its library in a file system that only it has.
    ``private``: of another user, who alone may read the library. ``deleted``: it was, after it was loaded.
    """
    bare = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    other = (*bare, f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups", "--")
    own = (*bare, f"--reuid={agent}", f"--regid={agent}", "--clear-groups", "--")
    plain = _library(folder / "own", agent, 0o755)
    hidden = folder / "hidden"
    hidden.mkdir()
    inside = (
        f"mount --make-rprivate / && mount -t tmpfs -o mode=755 none {hidden} && cp {plain} {hidden} && exec"
    )
    started = {
        "own": (own, plain),
        "contained": (
            ("unshare", "-m", "sh", "-c", f'{inside} "$@"', "sh", *other),
            hidden / "libcudart.so.12",
        ),
        "private": (other, _library(folder / "private", OTHER_USER, 0o700)),
        "deleted": (own, _library(folder / "deleted", agent, 0o755)),
    }
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(start_cuda_client(prefix=prefix, library=library, calls=CALLS))
            for name, (prefix, library) in started.items()
        }
        (folder / "deleted" / "libcudart.so.12").unlink()
        yield running


def attach(folder: Path, prefix: Collection[str], *options: str, agent: int = 0) -> Heard:
    """Attach to all :func:`programs` with a command behind ``prefix``, let them make their calls, and end it."""
    out = folder / "out"
    out.mkdir()
    os.chown(out, agent, agent)
    traces = out / "traces.jsonl"
    with programs(folder, agent=agent) as running:
        pids = ",".join(str(program.pid) for program in running.values())
        session = subprocess.Popen(
            [*prefix, OTELGPU, "attach", "-p", pids, f"--export=file:{traces}", *options],
            stderr=subprocess.PIPE,
            text=True,
            cwd=out,
        )
        said = said_at_start(session)
        if "observing" in said:
            for program in running.values():
                program.finish()
            session.terminate()
        said += session.communicate(timeout=AGENT_S)[1]
        spans = read_spans(traces) if traces.exists() else []
        launches = {
            name: cuda_calls(
                [span for span in spans if span["resource"].get("process.pid") == program.pid]
            ).get("cudaLaunchKernel", 0)
            for name, program in running.items()
        }
    return Heard(said=said, launches=launches)


def helpers_of(agent: int) -> tuple[list[int], list[int]]:
    """An agent's own processes: who holds what lets others go, and who reads what others wrote, which is nobody's.

    The latter sees to it that the agent stops, too.
    """
    guards: list[int] = []
    readers: list[int] = []
    for child in map(int, Path(f"/proc/{agent}/task/{agent}/children").read_text().split()):
        status = Path(f"/proc/{child}/status").read_text()
        _, effective, *_ = status.partition("\nUid:")[2].split()
        if int(effective) == NOBODY:
            readers.append(child)
        elif held(Path(f"/proc/{child}")).effective:
            guards.append(child)
    return guards, readers
