"""Programs of family profile that tell, when they are asked, what has not been told yet.

A thread that waits, and quick system calls that no sample stands for, are known to the kernel's maps alone until
something ends. ``iter/task`` programs (``offcpu_tell``, ``syscall_tell``) put them into the ring as samples; what they
told is then accounted for, so that sums over a session are exact whenever its last samples were asked for.
"""

from __future__ import annotations

from otelgpu.kernel.libbpf import Link
from otelgpu.kernel.loader import LoadedFamily


class Tellers:
    """Those of one loaded family; none where its programs for them are not loaded. Closed with the family."""

    def __init__(self, loaded: LoadedFamily) -> None:
        """Raises :class:`BpfError` where the kernel refuses one."""
        self._links: list[Link] = [
            program.attach() for program in loaded.programs if program.section.startswith("iter/")
        ]
        loaded.links += self._links

    def tell(self) -> None:
        """Have all of it put into the ring: before that is drained, every few seconds and at the end.

        Raises :class:`BpfError`.
        """
        for link in self._links:
            link.iterate()
