"""What the real RDMA programs of in_guest/rdma_programs.sh said that they did, and how a guest records them.

In: a folder with ``<name>.client`` and ``<name>.server`` as the programs wrote them. Out: queue pairs with the work
requests that each posted. Nothing here knows otelgpu but `record`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.vm import guest
from tests.vm.kernels import Kernel, RigError

LATE: Final = "late"
BARE: Final = "bare"
DEVICES: Final = {"client": "rxeA", "server": "rxeB"}
_TIMEOUT_S: Final = 900
# ibv_rc_pingpong: "  local address:  LID 0x0000, QPN 0x000011, …"; perftest: " local address: LID 0000 QPN 0x0012 …"
_LOCAL: Final = re.compile(r"^\s*local address:.*?QPN 0x([0-9a-f]+)", re.MULTILINE)
_PINGPONG: Final = re.compile(r"^(\d+) iters in", re.MULTILINE)
_PERFTEST: Final = re.compile(r"^ (\d+) +(\d+) +[\d.]+", re.MULTILINE)
_PINGPONG_US: Final = re.compile(r"= ([\d.]+) usec/iter$", re.MULTILINE)
_PINGPONG_BYTES: Final = re.compile(r"^(\d+) bytes in", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Posted:
    """Work requests that one queue pair posted, by what its program said. ``operation``: ``send`` or ``write``."""

    device: str
    number: int
    operation: str
    work_requests: int
    bytes: int


def said(folder: Path, name: str) -> Iterator[Posted]:
    """Of both sides of one pair of programs; only of those that send."""
    for side, device in DEVICES.items():
        text = (folder / f"{name}.{side}").read_text()
        numbers = [int(found, 16) for found in _LOCAL.findall(text)]
        if name.startswith("pingpong") or name == LATE:
            count, moved = (int(pattern.findall(text)[0]) for pattern in (_PINGPONG, _PINGPONG_BYTES))
            for number in numbers:
                yield Posted(device, number, "send", count, moved // 2)  # it adds both directions up
        elif name == "send_lat" or side == "client":  # ib_write_bw's server only lends its memory
            size, total = (
                int(field) for field in _PERFTEST.findall((folder / f"{name}.client").read_text())[0]
            )
            operation = "send" if name == "send_lat" else "write"
            for number in numbers:
                yield Posted(device, number, operation, total // len(numbers), size * total // len(numbers))


def codes(folder: Path, name: str) -> str:
    """The exit codes of server and client, as ``"0 0"``; empty when they did not end."""
    path = folder / f"{name}.codes"
    return path.read_text().strip() if path.exists() else ""


def record(kernel: Kernel, folder: Path, programs: Sequence[str]) -> Path:
    """Run ``programs`` in a guest under ``otelgpu record``; the capture. Raises `RigError` when the guest fails.

    Then `LATE`, which has a capture of its own: ``late.capture``.
    """
    capture = folder / "rdma.capture"
    options = f"--families verbs --rdma-budget 100 --hold-on-load -o {capture}"
    scripts = guest.SCRIPTS
    _run(
        kernel,
        folder,
        f"timeout {_TIMEOUT_S - 60} $OTELGPU record {options} "
        f"-- bash {scripts}/rdma_programs.sh {' '.join(programs)}\n"
        f"timeout {_TIMEOUT_S - 60} bash {scripts}/rdma_programs.sh {LATE}",
    )
    return capture


def pingpong_us(kernel: Kernel, folder: Path, rounds: int, budgets: Sequence[str]) -> dict[str, list[float]]:
    """Microseconds that a round trip took, by the program itself: by budget and `BARE`, of each round."""
    _run(kernel, folder, f"bash {guest.SCRIPTS}/rdma_cost.sh {rounds} {' '.join(budgets)}")
    return {
        each: [
            float(_PINGPONG_US.findall((folder / str(turn) / each / "pingpong_long.client").read_text())[0])
            for turn in range(1, rounds + 1)
        ]
        for each in (BARE, *budgets)
    }


def _run(kernel: Kernel, folder: Path, commands: str) -> None:
    """In a guest that has rxeA and rxeB, with $OUT and $OTELGPU."""
    command = (
        f"set -e; export OUT={folder} PYTHONDONTWRITEBYTECODE=1; bash {guest.SCRIPTS}/rxe_up.sh\n"
        f"export OTELGPU={guest.ROOT}/.venv/bin/otelgpu; cd {folder}\n{commands}"
    )
    finished = guest.run(kernel, command, out=folder, timeout_s=_TIMEOUT_S)
    if finished.code:
        raise RigError(f"the guest's programs ended with {finished.code}:\n{finished.out}{finished.err}")


def counter(folder: Path, name: str, device: str, which: str) -> int:
    """What the driver had counted when a pair of programs had ended."""
    return int((folder / f"{name}.counters.{device}" / which).read_text())
