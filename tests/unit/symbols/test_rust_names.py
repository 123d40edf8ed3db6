"""Rust names, of both schemes: as binutils read them, bounded, and never an error."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.symbols.demangle import MAX_NAME_LENGTH, demangle
from otelgpu.symbols.rust_names import MAX_LENGTH, demangle_rust, is_rust

# What c++filt 2.40 makes of linkers' names, without crates' hashes and types of constants.
NAMES = {
    "_RNvCs1234_7mycrate3foo": "mycrate::foo",
    "_RINvCs6GmmlP4bgsG_1r5sizedKj7_Kb1_EB2_": "r::sized::<7, true>",
    "_RINvNtC3std3mem8align_ofdE": "std::mem::align_of::<f64>",
    "_RNvMs_Cs4fqI2P2rA04_5tokenNtB4_7Encoder6encode": "<token::Encoder>::encode",
    "_RNvXsa_NtNtCsgEmfK2I1SDS_4core3fmt5floatC3f16NtB7_5Debug3fmt": "<f16 as core::fmt::Debug>::fmt",
    "_RNCNvNtCsjrHSEGnQ3l9_3std2io7cleanup0B5_": "std::io::cleanup::{closure#0}",
    "_RNSNvYNCINvNtCsjrHSEGnQ3l9_3std2rt10lang_startuE0INtNtNtCsgEmfK2I1SDS_4core3ops8function6FnOnceuE9call_once6vtable"
    "Cs6GmmlP4bgsG_1r": (
        "<std::rt::lang_start<()>::{closure#0} as core::ops::function::FnOnce<()>>::call_once::{shim:vtable#0}"
    ),
    "_RNvC6_123foo3bar": "123foo::bar",
    "_RNqCs4fqI2P2rA04_11utf8_identsu30____7hkackfecea1cbdathfdh9hlq6y": "utf8_idents::საჭმელად_გემრიელი_სადილი",
    "_RMCs4fqI2P2rA04_13const_genericINtB0_4CharKc2202_E": "<const_generic::Char<'\N{FOR ALL}'>>".replace(
        "\N{FOR ALL}", "\u2202"
    ),
    "_RINvC1a1fFG_RL0_hEuE": "a::f::<for<'a> fn(&'a u8)>",
    "_RINvC1a1fFUKCPtEoE": 'a::f::<unsafe extern "C" fn(*const u16) -> u128>',
    "_RINvC1a1fDNtC1b4Workp4ItemmEL_ThEASbj3_QeE": "a::f::<dyn b::Work<Item = u32>, (u8,), [[bool]; 3], &mut str>",
    "_RINvC1a1fKln5_Kcff_E": "a::f::<-5, 'ÿ'>",
    "_RNvC1a1f.llvm.1234": "a::f",
    "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE": "core::fmt::Write::write_fmt",
    "_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b740aa94f1d3aE": (
        "<Test + 'static as foo::Bar<Test>>::bar"
    ),
    "_ZN3std2rt10lang_start28_$u7b$$u7b$closure$u7d$$u7d$17h1c3c1ea5a2a7bb51E": "std::rt::lang_start::{{closure}}",
}


@pytest.mark.parametrize(("mangled", "name"), NAMES.items(), ids=lambda text: text[:30])
def test_names_of_both_schemes_are_readable(mangled: str, name: str) -> None:
    assert demangle(mangled) == name


@pytest.mark.parametrize(
    "name",
    [
        *("_R", "_RNv", "_RNvC", "_Read", "_Rx", "_RNvC9a", "_RB_", "_RNvB_3foo", "_RNvC1a999999999b"),
        *("_RINvC1a1fKlz_E", "_RINvC1a1fRL5_hE", "_RNvC1ä1f", "_RNvCu2__1f", "_RNvC1a1f\x1b"),
    ],
)
def test_what_is_no_name_comes_back_as_it_is(name: str) -> None:
    assert demangle_rust(name) == name


def test_names_of_cpp_are_not_taken_for_rust() -> None:
    assert not is_rust("_ZN5flash10fwd_kernelI6TraitsEEvv")
    assert demangle("_ZN2at6native3addEv") == "at::native::add()"


@pytest.mark.parametrize(
    "bomb",
    [
        "_RIC1a" + "TB0_B0_B0_B0_" * 500 + "E",
        "_RINvC1a1f" + "T" * 3000,
        "_RINvC1a1f" + "".join(f"TB{'_' if n == 0 else f'{n}_'}" for n in range(9)) + "E" * 10,
        "_RM" * 2000,
        "_RNvC1a" + "1f" * 3000,
        "_RIC0" + "TRhRhRhRhE" * 300 + "E",
    ],
    ids=lambda text: text[:16],
)
def test_a_name_that_stands_for_too_much_ends_soon(bomb: str) -> None:
    began = time.process_time()
    assert len(demangle_rust(bomb)) <= max(MAX_LENGTH, len(bomb))
    assert time.process_time() - began < 1.0


def test_references_that_double_at_each_step_end_soon() -> None:
    name = "_RINvC1a1f"
    place = len(name) - 2
    name += "TuuE"
    for _ in range(60):
        digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        back = place - 1
        reported = digits[back] if back < 62 else digits[back // 62] + digits[back % 62]
        place = len(name) - 2
        name += f"TB{reported}_B{reported}_E"
    began = time.process_time()
    assert len(demangle(name + "E")) <= MAX_NAME_LENGTH
    assert time.process_time() - began < 1.0


@given(st.text(st.sampled_from("_RNvCMXYITBsuKLGFDpE0123456789abhjmz_"), max_size=60))
def test_any_text_is_read(text: str) -> None:
    assert isinstance(demangle("_R" + text), str)


@given(st.sampled_from([name for name in NAMES if name.startswith("_R")]), st.data())
def test_a_damaged_name_is_read(name: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(name) - 1))
    damaged = name[:place] + data.draw(st.characters(max_codepoint=255)) + name[place + 1 :]
    assert demangle(damaged).isprintable() or not damaged.isprintable()


def test_all_names_of_a_program_of_rust_are_as_binutils_have_them(tmp_path: Path) -> None:
    missing = [tool for tool in ("rustc", "nm", "c++filt") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not on PATH: {', '.join(missing)}")
    (tmp_path / "a.rs").write_text('fn main() { println!("{:?}", std::env::args().collect::<Vec<_>>()); }')
    flags = ("-C", "symbol-mangling-version=v0", "-o", tmp_path / "a")
    made = subprocess.run(["rustc", *flags, tmp_path / "a.rs"], capture_output=True, check=False, text=True)
    if made.returncode:
        pytest.skip(f"rustc does not build here: {made.stderr[:200]}")
    listed = subprocess.run(["nm", tmp_path / "a"], capture_output=True, check=True, text=True).stdout
    names = sorted({line.split()[-1] for line in listed.splitlines() if " _R" in line})
    assert names or " _ZN" in listed
    theirs = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, check=True, text=True
    ).stdout
    for name, expected in zip(names, theirs.splitlines(), strict=True):
        expected = re.sub(r"\[[0-9a-f]{1,16}\](?=::)", "", expected)
        expected = re.sub(r"\b([0-9]+|true|false): (?:[iu](?:8|16|32|64|128|size)|bool)", r"\1", expected)
        assert demangle(name) == expected
