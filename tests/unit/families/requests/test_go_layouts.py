"""What the cookies say of Go programs: only of versions whose sources were read."""

from __future__ import annotations

import pytest

from otelgpu.elf.image import ElfImage
from otelgpu.families.requests.discover.go_requests import layouts_of
from otelgpu.processes.probes import InspectedFile
from tests.unit.elf.go_builders import FUNCTION, go_elf

CONTEXT, GRPC_69, GRPC_77 = 0xFFF, 0x1000, 0x2000  # bpf/http/go_streams.h


@pytest.mark.parametrize(
    ("go", "grpc", "expected"),
    [
        ("1.20.14", "1.60.0", 0),
        ("1.22.12", "", 232),
        ("1.26.8", "", 248),
        ("1.26.8", "1.68.2", 248),
        ("1.22.12", "1.69.0", 232 | GRPC_69),
        ("1.26.8", "1.76.0", 248 | GRPC_69),
        ("1.26.8", "1.77.0", 248 | GRPC_77),
        ("1.26.8", "1.83.1", 248 | GRPC_77),
        ("1.26.8", "1.84.0", 248),
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
