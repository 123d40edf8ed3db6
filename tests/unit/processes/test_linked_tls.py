"""Which TLS library a program has linked into it: real release programs, and files that anybody may have made."""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.processes.elf_files import open_elf
from otelgpu.processes.linked_tls import linked_tls

RUSTLS = b"/home/b/.cargo/registry/src/index-1949cf8c6b5b557f/rustls-0.23.35/src/msgs/handshake.rs"
"""From a server of rustls 0.23.35, ``cargo build --release`` with ``strip = true``; its folder's name cut."""
BORINGSSL = b"third_party/boringssl-with-bazel/ssl/tls_record.cc"
"""From grpcio 1.80."""


def with_constants(constants: bytes, folder: Path) -> Path:
    """A stripped program that has these among its constants."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: no program can be made")
    source, program = folder / "main.c", folder / "serve"
    data = ", ".join(map(str, constants))
    source.write_text(
        f"const char data[] = {{{data}}};\nint main(int n, char **v) {{ return data[n] + !v; }}\n"
    )
    subprocess.run(["gcc", "-O0", "-s", "-o", program, source], check=True)
    return program


def named(program: Path) -> tuple[str, ...]:
    with open_elf(program) as file:
        return linked_tls(file.image)


@pytest.mark.parametrize(
    ("constants", "library"),
    [
        (RUSTLS, "rustls 0.23.35"),
        (b"vendor/rustls/src/conn.rs", "rustls"),
        (BORINGSSL, "BoringSSL"),
        (b"external/boringssl/src/ssl/ssl_lib.cc", "BoringSSL"),
        (b"crypto/tls.(*Conn).Read\0", ""),  # only a Go program's is Go's
        (b"rustls: see https://example.org/rustls", ""),
        (b"third_party/boringssl/crypto/aes.c", ""),
    ],
)
def test_a_stripped_program_is_known_by_its_constants(constants: bytes, library: str, tmp_path: Path) -> None:
    assert named(with_constants(constants, tmp_path)) == ((library,) if library else ())


def test_sections_need_no_headers(tmp_path: Path) -> None:
    program = with_constants(RUSTLS, tmp_path)
    content = bytearray(program.read_bytes())
    struct.pack_into("<Q", content, 40, 0)  # e_shoff
    struct.pack_into("<2H", content, 60, 0, 0)  # e_shnum, e_shstrndx
    assert linked_tls(ElfImage(bytes(content))) == ("rustls 0.23.35",)


def test_grpcio_has_boringssl() -> None:
    spec = find_spec("grpc._cython.cygrpc")
    assert spec is not None and spec.origin is not None
    assert named(Path(spec.origin)) == ("BoringSSL",)


def test_a_go_program_is_known_also_when_it_is_stripped(tmp_path: Path) -> None:
    go = shutil.which("go", path="/usr/local/go/bin:/usr/local/bin:/usr/bin")
    if go is None:
        pytest.skip("go is not installed")
    own = Path(go).resolve()
    stripped = tmp_path / "go"
    subprocess.run(["strip", "-s", "-o", stripped, own], check=True)  # it downloads modules over TLS
    assert all(
        len(found) == 1 and found[0].startswith("Go's crypto/tls 1.") for found in map(named, (own, stripped))
    )
    assert named(own.parent / "gofmt") == ()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return with_constants(RUSTLS, tmp_path_factory.mktemp("damaged")).read_bytes()


@given(seed=st.integers(), damage=st.integers(1, 40), cut=st.floats(0, 1))
def test_a_damaged_program_is_named_or_not(program: bytes, seed: int, damage: int, cut: float) -> None:
    chance = random.Random(seed)
    content = bytearray(program[: int(len(program) * cut)])
    for _ in range(damage if content else 0):
        content[
            chance.choice((chance.randrange(len(content)), chance.randrange(min(len(content), 1000))))
        ] = chance.randrange(256)
    try:
        image = ElfImage(bytes(content))
    except ElfError:
        return
    assert all(re.fullmatch(r"rustls(?: [0-9.]+)?", name) for name in linked_tls(image))
