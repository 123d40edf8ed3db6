"""Print the rows of the table of communicator layouts: ``python -m tools.nccl_layouts libnccl.so.2…``.

In: libraries with debugging information, as the packages nvidia-nccl-cu12 and -cu13 have them (those of the versions
that the tests use are in the cache, see tests/rig/nccl_wheels.py). Out: a row of ``LISTED`` in
otelgpu/families/nccl/discover/layouts.py for each, or what differs from the row that is there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from otelgpu.families.nccl.discover.communicators import STRUCTURE, described_layout, known_layout
from otelgpu.families.nccl.discover.layouts import LISTED, CommunicatorLayout
from otelgpu.processes.elf_files import open_elf
from otelgpu.processes.struct_finder import members_of


def row(version: str, layout: CommunicatorLayout) -> str:
    """As it stands in the table."""
    given = [layout.hash_at, layout.end_at, layout.graphs_at]
    if layout.sequences:
        given.append(layout.sequences_at)
    return f'    "{version}": _listed({", ".join(map(str, given))}),'


def read(path: str) -> tuple[str, CommunicatorLayout]:
    """Version and layout of a library, by its debugging information. Exits where it has none."""
    with open_elf(path) as file:
        version, _, _ = known_layout(file.image)
        layout = described_layout(members_of(file.image, STRUCTURE), version)
    if version is None or layout is None:
        raise SystemExit(f"{path}: NCCL {version or '?'}, without debugging information on its communicators")
    return version, layout


def main(paths: Sequence[str]) -> int:
    """1 when a row of the table is not what its library says."""
    wrong = 0
    for path in paths:
        version, layout = read(path)
        listed = LISTED.get(version)
        print(row(version, layout), "" if listed in (None, layout) else f"# the table says {listed}")
        wrong |= listed not in (None, layout)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
