"""What the cookies say of Go programs: only of versions whose sources were read."""

from __future__ import annotations

import pytest

from otelgpu.elf.image import ElfImage
from otelgpu.families.requests.discover import go_requests
from otelgpu.families.requests.discover.go_requests import layouts_of
from otelgpu.processes.probes import InspectedFile
from tests.unit.elf.go_builders import FUNCTION, go_elf

CONTEXT, GRPC_69, GRPC_77, CURG_184, GOID_160, TLS_SHIFT = 0xFFF, 0x1000, 0x2000, 0x4000, 0x8000, 16
"""bpf/http/go_streams.h."""
TLS = 1 << TLS_SHIFT  # a word below the thread pointer
GO_22, GO_24, GO_26 = TLS | 232, TLS | GOID_160 | 248, TLS | CURG_184 | 248


@pytest.mark.parametrize(
    ("go", "grpc", "expected"),
    [
        ("1.20.14", "1.60.0", 0),
        ("1.22.12", "", GO_22),
        ("1.24.3", "", GO_24),
        ("1.26.8", "", GO_26),
        ("1.26.8", "1.68.2", GO_26),
        ("1.22.12", "1.69.0", GO_22 | GRPC_69),
        ("1.26.8", "1.76.0", GO_26 | GRPC_69),
        ("1.26.8", "1.77.0", GO_26 | GRPC_77),
        ("1.26.8", "1.83.1", GO_26 | GRPC_77),
        ("1.26.8", "1.84.0", GO_26),
        ("1.27.0", "1.83.0", 0),
    ],
)
def test_a_layout_is_known_of_versions_that_have_it(go: str, grpc: str, expected: int) -> None:
    dependency = f"dep\tgoogle.golang.org/grpc\tv{grpc}\th1:x=\n" if grpc else ""
    build_info = bytes(18) + f"\x08go{go}\x30path\tx\n{dependency}".encode()
    image = ElfImage(go_elf({"main.main": FUNCTION}, build_info=build_info))
    found = layouts_of(InspectedFile(image, "/program", -1, 1))
    assert found == expected < 1 << 31
    assert expected & CONTEXT in (0, 232, 248)


@pytest.mark.parametrize(
    ("distance", "said"),
    [(-96, 12 << TLS_SHIFT), (-12, 0), (8, 0), (-8 << 15, 0), (-8 * 0x7FFF, 0x7FFF << TLS_SHIFT)],
)
def test_where_the_c_linker_put_the_thread_local_is_said_if_the_cookie_can(
    monkeypatch: pytest.MonkeyPatch, distance: int, said: int
) -> None:
    monkeypatch.setattr(go_requests, "go_path", lambda image: (distance, 48, 192, 152))
    image = ElfImage(go_elf({"main.main": FUNCTION}))
    assert layouts_of(InspectedFile(image, "/program", -1, 1)) & ~CONTEXT == said
