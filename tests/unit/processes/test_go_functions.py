"""Where functions of Go programs can be probed: wholly understood, or not at all."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from otelgpu.elf.image import ElfImage
from otelgpu.processes.go_functions import MOST_RETURNS, GoFunctions, go_entries, go_functions
from tests.unit.elf.go_builders import FUNCTION, PROLOGUE, go_elf

CONN = "crypto/tls.(*Conn)."
WANTED = tuple(CONN + name for name in ("Read", "Write", "Close", "serverHandshake", "clientHandshake"))


def test_crypto_tls_is_found_in_a_stripped_program(tmp_path: Path) -> None:
    go = shutil.which("go", path="/usr/local/go/bin:/usr/local/bin:/usr/bin")
    if go is None:
        pytest.skip("go is not installed")
    whole, stripped = Path(go).resolve(), tmp_path / "go"
    subprocess.run(["strip", "-s", "-o", stripped, whole], check=True)
    functions = go_functions(ElfImage(stripped.read_bytes()), WANTED)
    found = functions.found
    assert found.keys() == {*WANTED} - {CONN + "serverHandshake"} and not functions.unknown  # it is a client
    by_symbols = ElfImage(whole.read_bytes()).function_offsets(found)
    assert {name: one.entry for name, one in found.items()} == by_symbols
    code = stripped.read_bytes()
    for name in WANTED[:2]:
        assert len(found[name].returns) > 2
        assert {code[place] for place in found[name].returns} == {0xC3}


def test_what_c_put_before_go_s_code_is_no_function_of_it() -> None:
    for base in ("header", "module", "relocation"):
        made = go_elf({"a.b": FUNCTION, "c.d": FUNCTION}, base, before=64)  # type: ignore[arg-type]
        found = go_functions(ElfImage(made), ("a.b", "c.d")).found
        entry = made.index(PROLOGUE)
        assert found["a.b"].entry == entry
        assert found["c.d"].returns == (entry + 32 + 6, entry + 32 + 8)


@pytest.mark.parametrize(
    "code",
    [
        b"\x90\xc3",  # no comparison with the stack's limit
        b"\x64\x48\x8b\x0c\x25\xf8\xff\xff\xff" + FUNCTION,  # g from the thread's storage: Go 1.16
        PROLOGUE + b"\x06\xc3",  # no instruction
        PROLOGUE + b"\xeb\x70\xc3",  # out of the function
        PROLOGUE[:4] + b"\xcc",  # it never returns
        FUNCTION + b"\xc3" * MOST_RETURNS,
    ],
)
def test_of_a_program_that_is_not_understood_nothing_is_probed(code: bytes) -> None:
    image = ElfImage(go_elf({"a.b": FUNCTION, "c.d": code}))
    assert go_functions(image, ("a.b", "c.d")) == GoFunctions(unknown=True)
    assert go_functions(image, ("a.b", "no.such")).found.keys() == {"a.b"}
    assert go_functions(image, ("no.such",)) == GoFunctions()  # nothing wanted is in it


def test_a_damaged_table_and_another_machine_are_not_understood() -> None:
    made = go_elf({"a.b": FUNCTION})
    damaged = bytearray(made)
    damaged[made.index(b"\xf1\xff\xff\xff") + 8] = 0xFF  # ever so many functions
    other = bytearray(made)
    other[18] = 183  # aarch64
    for each in (damaged, other, made.replace(b".gopclntab", b".hidden\0\0\0")):
        assert go_functions(ElfImage(bytes(each)), ("a.b",)) == GoFunctions(unknown=True)
    assert go_functions(ElfImage(made), ()) == GoFunctions()


def test_entries_of_a_stripped_program_are_where_its_symbols_were(tmp_path: Path) -> None:
    go = shutil.which("go", path="/usr/local/go/bin:/usr/local/bin:/usr/bin")
    if go is None:
        pytest.skip("go is not installed")
    whole, stripped = Path(go).resolve(), tmp_path / "go"
    subprocess.run(["strip", "-s", "-o", stripped, whole], check=True)
    wanted = ("net/http.(*persistConn).roundTrip", "net/http.persistConnWriter.Write", "no.such")
    by_symbols = ElfImage(whole.read_bytes()).function_offsets(wanted)
    assert len(by_symbols) == 2
    assert go_entries(ElfImage(stripped.read_bytes()), wanted) == by_symbols


def test_what_does_not_begin_as_go_s_functions_do_has_no_entry() -> None:
    image = ElfImage(go_elf({"a.b": FUNCTION, "c.d": b"\x90\xc3"}))
    assert go_entries(image, ("a.b", "c.d")) == go_entries(image, ("no.such",)) == {}
    assert go_entries(image, ("a.b",)).keys() == {"a.b"}
