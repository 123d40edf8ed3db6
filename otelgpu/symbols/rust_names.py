"""Mangled Rust names → readable ones. Pure; what is damaged comes back as it is.

Two schemes: names like C++'s with a hash at their end, and "v0" (RFC 2603; the rustc book, "Symbol mangling"). Crates'
hashes and types of constants are left out, as ``{:#}`` does in rustc-demangle.

    >>> demangle_rust("_RNvMs_Cs4fqI2P2rA04_5tokenNtB4_7Encoder6encode")
    '<token::Encoder>::encode'
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MAX_LENGTH: Final = 4096
"""Characters of a result: back references can stand for far more, which then stays mangled."""

_MAX_DEPTH: Final = 100
_MAX_STEPS: Final = 20_000
_HASH: Final = re.compile(r"::h[0-9a-f]{16}\Z")
_HASH_MANGLED: Final = re.compile(r"_ZN.*17h[0-9a-f]{16}E")
_ESCAPE: Final = re.compile(r"\$(SP|BP|RF|LT|GT|LP|RP|C|u[0-9a-f]{1,6})\$")
_ESCAPES: Final = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
_DIGITS: Final = {
    character: value
    for value, character in enumerate("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
}
_BASIC: Final = {
    **{"a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8", "i": "isize"},
    **{"j": "usize", "l": "i32", "m": "u32", "n": "i128", "o": "u128", "s": "i16", "t": "u16", "u": "()"},
    **{"v": "...", "x": "i64", "y": "u64", "z": "!", "p": "_"},
}
_SIGNED: Final = "ailnsx"
_PATHS: Final = "CMXYNI"


class _Damaged(Exception):
    """It is no name of this scheme, or one that stands for too much."""


def is_rust(mangled: str) -> bool:
    """Whether a linker's name is one of Rust's."""
    return mangled.startswith("_R") or _HASH_MANGLED.match(mangled) is not None


def readable(expanded: str) -> str:
    """Of the older scheme, once it was demangled as C++: without the hash and with what stands for punctuation.

    >>> readable("_$LT$Test$u20$as$u20$foo..Bar$GT$::bar::h930b740aa94f1d3a")
    '<Test as foo::Bar>::bar'
    """
    parts = _HASH.sub("", expanded).split("::")
    return "::".join(_plain(part) for part in parts)


def _plain(part: str) -> str:
    part = part.removeprefix("_") if part.startswith("_$") else part
    return _ESCAPE.sub(_character, part).replace("..", "::")


def _character(found: re.Match[str]) -> str:
    code = found[1]
    if code in _ESCAPES:
        return _ESCAPES[code]
    value = int(code[1:], 16)
    character = chr(value) if value < 0x110000 and not 0xD800 <= value < 0xE000 else ""
    return character if character.isprintable() else found[0]


def demangle_rust(mangled: str) -> str:
    """A name of scheme v0 in readable form; any other comes back as it is. Never raises."""
    if not mangled.startswith("_R") or not mangled.isascii():
        return mangled
    text = re.split(r"[.$]", mangled[2:], maxsplit=1)[0]  # behind it is the compiler's own
    try:
        parser = _Parser(text)
        name = parser.whole()
    except (_Damaged, ValueError, OverflowError):  # ValueError: of punycode
        return mangled
    return name if name and len(name) <= MAX_LENGTH and name.isprintable() else mangled


class _Parser:
    """Reads one name from left to right; every method leaves ``_at`` behind what it has read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = self._steps = 0
        self._bound = 0  # lifetimes that binders around have named

    def whole(self) -> str:
        """The name, behind which may stand the crate that it was made for."""
        name = self.path(is_value=True)
        if self._at < len(self._text):
            self.path()
        if self._at < len(self._text):
            raise _Damaged
        return name

    # -- Paths ---------------------------------------------------------------------------------------------

    def path(self, *, is_value: bool = False) -> str:
        """``is_value``: generic arguments are written as in an expression, ``Vec::<u8>::new``."""
        self._enter()
        kind = self._next()
        match kind:
            case "C":
                self._disambiguator()
                found = self._name()
            case "M":
                self._skip_impl_path()
                found = f"<{self.type()}>"
            case "X":
                self._skip_impl_path()
                found = f"<{self.type()} as {self.path()}>"
            case "Y":
                found = f"<{self.type()} as {self.path()}>"
            case "N":
                found = self._nested(is_value)
            case "I":
                base = self.path(is_value=is_value)
                arguments = self._many(self._argument)
                found = f"{base}{'::' if is_value else ''}<{', '.join(arguments)}>"
            case "B":
                found = self._back(lambda: self.path(is_value=is_value))
            case _:
                raise _Damaged
        return self._leave(found)

    def _nested(self, is_value: bool) -> str:
        namespace = self._next()
        inside = self.path(is_value=is_value)
        number = self._disambiguator()
        name = self._name()
        if namespace.isupper():
            what = {"C": "closure", "S": "shim"}.get(namespace, namespace)
            return f"{inside}::{{{what}{':' if name else ''}{name}#{number}}}"
        if not namespace.islower():
            raise _Damaged
        return f"{inside}::{name}" if name else inside

    def _skip_impl_path(self) -> None:
        self._disambiguator()
        self.path()

    def _name(self) -> str:
        is_unicode = self._eat("u")
        length = self._decimal()
        self._eat("_")
        if length > len(self._text) - self._at:
            raise _Damaged
        name = self._text[self._at : self._at + length]
        self._at += length
        if is_unicode:
            head, _, tail = name.rpartition("_")
            name = (f"{head}-{tail}" if head else tail).encode("ascii").decode("punycode")
        return name

    def _disambiguator(self) -> int:
        return self._base62() + 1 if self._eat("s") else 0

    # -- Types ---------------------------------------------------------------------------------------------

    def type(self) -> str:
        """The type that begins here."""
        self._enter()
        kind = self._next()
        if kind in _BASIC:
            found = _BASIC[kind]
        elif kind in _PATHS:
            self._at -= 1
            found = self.path()
        else:
            found = self._composed(kind)
        return self._leave(found)

    def _composed(self, kind: str) -> str:
        match kind:
            case "A":
                return f"[{self.type()}; {self._constant()}]"
            case "S":
                return f"[{self.type()}]"
            case "T":
                types = self._many(self.type)
                return f"({', '.join(types)}{',' if len(types) == 1 else ''})"
            case "R" | "Q":
                lifetime = self._lifetime() if self._eat("L") else ""
                shown = f"{lifetime} " if lifetime and lifetime != "'_" else ""
                return f"&{shown}{'mut ' if kind == 'Q' else ''}{self.type()}"
            case "P":
                return f"*const {self.type()}"
            case "O":
                return f"*mut {self.type()}"
            case "F":
                return self._bind(self._function)
            case "D":
                bounds = self._bind(lambda: " + ".join(self._many(self._trait)))
                if not self._eat("L"):
                    raise _Damaged
                lifetime = self._lifetime()
                return f"dyn {bounds}{'' if lifetime == chr(39) + '_' else f' + {lifetime}'}"
            case "B":
                return self._back(self.type)
        raise _Damaged

    def _function(self) -> str:
        unsafe = "unsafe " if self._eat("U") else ""
        abi = ""
        if self._eat("K"):
            abi = "C" if self._eat("C") else self._name().replace("_", "-")
            abi = f'extern "{abi}" '
        arguments = ", ".join(self._many(self.type))
        result = self.type()
        return f"{unsafe}{abi}fn({arguments}){'' if result == '()' else f' -> {result}'}"

    def _trait(self) -> str:
        name = self.path()
        bindings = []
        while self._eat("p"):
            bindings.append(f"{self._name()} = {self.type()}")
        if not bindings:
            return name
        if name.endswith(">"):
            return f"{name[:-1]}, {', '.join(bindings)}>"
        return f"{name}<{', '.join(bindings)}>"

    def _argument(self) -> str:
        if self._eat("L"):
            return self._lifetime()
        return self._constant() if self._eat("K") else self.type()

    def _constant(self) -> str:
        self._enter()
        kind = self._next()
        if kind == "p":
            return self._leave("_")
        if kind == "B":
            return self._leave(self._back(self._constant))
        if kind not in _BASIC:
            raise _Damaged  # structures, which are not stable
        sign = "-" if kind in _SIGNED and self._eat("n") else ""
        digits = ""
        while (digit := self._next()) != "_":
            if digit not in "0123456789abcdef" or len(digits) > 32:
                raise _Damaged
            digits += digit
        value = int(digits or "0", 16)
        if kind == "b":
            return self._leave("true" if value else "false")
        if kind == "c":
            return self._leave(repr(chr(value)) if value < 0x110000 else "_")
        return self._leave(f"{sign}{value}")

    def _lifetime(self) -> str:
        number = self._base62()
        if number == 0:
            return "'_"
        depth = self._bound - number
        if depth < 0:
            raise _Damaged
        return f"'{chr(ord('a') + depth)}" if depth < 26 else f"'_{depth}"

    def _bind(self, inner: Callable[[], str]) -> str:
        count = self._base62() + 1 if self._eat("G") else 0
        if count > 1000:
            raise _Damaged
        before, self._bound = self._bound, self._bound + count
        names = [
            f"'{chr(ord('a') + depth)}" if depth < 26 else f"'_{depth}"
            for depth in range(before, self._bound)
        ]
        found = inner()
        self._bound = before
        return f"for<{', '.join(names)}> {found}" if names else found

    # -- Text ----------------------------------------------------------------------------------------------

    def _many(self, one: Callable[[], str]) -> list[str]:
        found = []
        while not self._eat("E"):
            found.append(one())
        return found

    def _back(self, read: Callable[[], str]) -> str:
        """What was read before, at the place that is reported here."""
        start = self._at - 1
        place = self._base62()
        if place >= start:
            raise _Damaged
        behind, self._at = self._at, place
        found = read()
        self._at = behind
        return found

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise _Damaged
        self._at += 1
        return self._text[self._at - 1]

    def _eat(self, character: str) -> bool:
        if self._text[self._at : self._at + 1] != character:
            return False
        self._at += 1
        return True

    def _decimal(self) -> int:
        start = self._at
        if self._eat("0"):
            return 0
        while self._at - start < 6 and self._text[self._at : self._at + 1].isdecimal():
            self._at += 1
        if self._at == start:
            raise _Damaged
        return int(self._text[start : self._at])

    def _base62(self) -> int:
        if self._eat("_"):
            return 0
        value = 0
        while (character := self._next()) != "_":
            if character not in _DIGITS or value >> 64:
                raise _Damaged
            value = value * 62 + _DIGITS[character]
        return value + 1

    def _enter(self) -> None:
        self._depth += 1
        self._steps += 1
        if self._depth > _MAX_DEPTH or self._steps > _MAX_STEPS:
            raise _Damaged

    def _leave(self, found: str) -> str:
        self._depth -= 1
        if len(found) > MAX_LENGTH:
            raise _Damaged
        return found
