"""Mangled C++ and Rust names → readable ones, and those → the short names that spans carry.

In and out: text. The Itanium C++ ABI names (https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling)
are read by libstdc++ through cxxfilt; where that is missing, names stay mangled and short names are still
found. It does not return for some names: those of observed processes are for
:class:`otelgpu.processes.demangler.Demangler`.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, F>(int, F)")
    'vectorized_elementwise_kernel'

nvcc gives each kernel a host function that launches it, ``__device_stub__Z4axpyfPfS_``; HIP's is
``__device_stub__axpy``. Both are named like the kernel itself. In relocatable device code nvcc prefixes the
names of static kernels with ``__nv_static_``, the length of a file's id, and that id.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Final

from otelgpu.symbols.rust_names import demangle_rust, is_rust, readable

MAX_NAME_LENGTH: Final = 4096
"""Longer names, mangled or not, are not taken apart; results are cut to this."""

# Substitutions let a name of 300 characters stand for terabytes. A name that could grow beyond this many
# characters of mangled text (a second in libstdc++) stays mangled; of the 68,000 C++ names of libLLVM and
# libclang none would.
_MAX_EXPANSION: Final = 1 << 25
_REFERENCE: Final = re.compile(r"S([0-9A-Z]*)_|T[0-9]*_|(Z)")
_REPEATED: Final = re.compile(r"(?:Dp|sp)(?![OPRKV]*T[0-9]*_)")  # a pack expansion of more than its pack

_UNKNOWN: Final = re.compile(r"\+0x[0-9a-f]+\Z")  # symbols.functions.unknown_name
_STUB: Final = "__device_stub_"
_STATIC: Final = re.compile(r"__nv_static_(\d{1,4})_")
_ANONYMOUS: Final = "(anonymous namespace)"
_OPERATOR: Final = re.compile(
    r"operator(?:\(\)|\[\]|<=>|<<=|>>=|->\*|->|<<|>>|&&|\|\||\+\+|--|[-+*/%^&|=!<>]=|[-+*/%^&|=!<>~,]"
    r"| (?:new|delete)(?:\[\])?|\"\" ?\w+| co_await)"
)
_CONVERSION: Final = re.compile(r"operator (?=[\w:(])")
_WORD: Final = re.compile(r"[^\s<>()\[\]{},:]+")
_LAMBDA: Final = re.compile(r"\{lambda\(.*\)(#\d+)\}", re.DOTALL)
_SOURCE_NAME: Final = re.compile(r"\d+")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}


def demangle(name: str) -> str:
    """The full readable form of a symbol: ``_Z4axpyfPfS_`` → ``axpy(float, float*, float*)``.

    What is not a mangled name, is damaged, or is longer than MAX_NAME_LENGTH comes back as it is, cut to
    that length. Host stubs come back as the kernel that they launch. Never raises.
    """
    if len(name) > MAX_NAME_LENGTH:
        return name[:MAX_NAME_LENGTH]
    if found := _STATIC.match(name):  # __nv_static_25__f05f2698_4_k_cu_c1bc4f3f__Z5quietPd
        name = name[found.end() + int(found.group(1)) :].removeprefix("_") or name
    if name.startswith("_R"):
        return demangle_rust(name)
    full = _expand(name) if name.startswith("_Z") else name
    if is_rust(name) and full != name:
        return readable(full)[:MAX_NAME_LENGTH]
    if full.startswith(_STUB):
        stub = re.match(r"[\w$.]+", full)
        kernel = stub.group()[len(_STUB) :] if stub else ""
        if kernel.startswith("_Z"):
            full = _expand(kernel)
        elif kernel:
            full = kernel.removeprefix("_") + full[len(_STUB) + len(kernel) :]
    elif _STUB in full:  # HIP, in a namespace: ns::__device_stub__axpy(float)
        full = full.replace(_STUB + "_", "")
    return full[:MAX_NAME_LENGTH]


def short_name(full: str) -> str:
    """The last identifier of a demangled function, without return type, scope and arguments.

    A call operator also names whose it is: ``functor::operator()``, or ``enclosing::{lambda#1}``. Other
    operators give their symbol (``operator<<``). A name that is still mangled gives its last source name
    before arguments. Text in which no function is recognised comes back as it is; the result is never
    empty unless ``full`` is.

        >>> short_name("flash::(anonymous namespace)::combine<Traits<(int)64>>(Params const&)")
        'combine'
        >>> short_name("main::{lambda(int)#2}::operator()(int) const")
        'main::{lambda#2}'
    """
    text = full[:MAX_NAME_LENGTH]
    if _UNKNOWN.search(text):
        return text
    if text.startswith("_Z"):
        return _last_source_name(text) or text
    text = re.split(r" \[clone | \(\.", text, maxsplit=1)[0]
    parts = _components(text)
    if not parts:
        return text or full
    last = parts[-1]
    if last == "operator()" and len(parts) > 1:
        last = parts[-2]
        if not last.startswith("{lambda"):
            return f"{last}::operator()"
        parts.pop()
    if last.startswith("{lambda"):
        found = _LAMBDA.fullmatch(last)
        label = f"{{lambda{found.group(1)}}}" if found else last
        return f"{parts[-2]}::{label}" if len(parts) > 1 and not parts[-2].startswith("{") else label
    return last.removeprefix("__device_stub__") or text


def _components(text: str) -> list[str]:
    """The parts of a qualified function name: ``int a::b<c>::d(e)`` → ``["a", "b", "d"]``."""
    parts: list[str] = []
    current = ""
    place = 0
    while place < len(text):
        character = text[place]
        if text.startswith(_ANONYMOUS, place):
            current, place = _ANONYMOUS, place + len(_ANONYMOUS)
        elif character == "o" and not current and (found := _OPERATOR.match(text, place)):
            current, place = found.group(), found.end()
        elif character == "o" and not current and (found := _CONVERSION.match(text, place)):
            end = _end_of_type(text, found.end())  # operator int*() : the type is part of the name
            current, place = text[place:end].strip(), end
        elif text.startswith("::", place):
            parts.append(current)
            current, place = "", place + 2
        elif character in "([<{":
            end = _closing(text, place)
            if character == "{":  # {lambda(int)#1}, {unnamed type#1}
                current = text[place:end]
            elif character == "(" and text[place + 1 : place + 2] in ("*", "&") and not current:
                return _components(text[place + 2 : end - 1])  # void (*name(int))(char)
            elif character == "(" and current not in ("", "decltype"):
                tail = re.compile(r"(?: const| volatile| &&?|\[abi:\w+\])*::").match(text, end)
                if not tail:
                    break  # the parameter list
                end = tail.end() - 2  # a function as a scope: main()::{lambda()#1}
            elif character == "(" and current == "decltype":
                current = ""
            place = end
        elif character in " *&":
            if text[place + 1 : place + 2] == "(" and current == "decltype":
                place += 1
                continue
            if text[place + 1 : place + 2] == "<" and current.startswith("operator"):
                place += 1  # operator<< <int>(…)
                continue
            if not text.startswith("::", place + 1):
                current = ""
                parts.clear()
            place += 1
        elif found := _WORD.match(text, place):
            current += found.group()
            place = found.end()
        else:
            place += 1
    if current:
        parts.append(current)
    return [part for part in parts if part]


def _end_of_type(text: str, place: int) -> int:
    """Where the conversion operator's type ends: at its (empty) parameter list."""
    while place < len(text):
        if text[place] == "(" and text.startswith("()", place):
            return place
        place = _closing(text, place) if text[place] in "([<{" else place + 1
    return place


def _closing(text: str, place: int) -> int:
    """Behind the bracket that closes the one at ``place``, or the end of the text.

    ``<`` and ``>`` between round brackets or in ``->`` are operators unless they are a template's.
    """
    expected: list[str] = []
    while place < len(text):
        character = text[place]
        if character == "o" and (found := _OPERATOR.match(text, place)):
            place = found.end()
            continue
        if character == "<" and text.startswith((" < ", " << ", " <= "), place - 1):
            pass
        elif character in _CLOSING:
            expected.append(_CLOSING[character])
        elif character == ">" and text[place - 1] == "-":
            pass
        elif character in ")]}>":
            while expected and expected[-1] == ">" and character != ">":
                expected.pop()  # an unmatched '<' was an operator after all
            if expected and expected[-1] == character:
                expected.pop()
            if not expected:
                return place + 1
        place += 1
    return place


def _last_source_name(mangled: str) -> str:
    """``_ZN5flash10fwd_kernelI6TraitsEEvv`` → ``fwd_kernel``: the name before arguments, undecoded."""
    place = len(mangled) - len(re.sub(r"^_Z(?:N[KVr]*)?L?", "", mangled))
    last = ""
    while found := _SOURCE_NAME.match(mangled, place):
        end = found.end() + int(found.group()[:5])
        last, place = mangled[found.end() : end], end
        if not mangled.startswith("_ZN"):
            break
    if last.startswith(_STUB):
        inner = last.removeprefix(_STUB)
        return _last_source_name(inner) if inner.startswith("_Z") else inner.removeprefix("_")
    return last


def _expand(mangled: str) -> str:
    if _expansion_bound(mangled) > _MAX_EXPANSION:
        return mangled
    try:
        return _demangler()(mangled)
    except Exception:  # cxxfilt.Error for what is no name; UnicodeError for bytes that are no text
        return mangled


def _expansion_bound(mangled: str) -> int:
    """No less mangled text than the name stands for without references, or some number above the limit.

    ``S…_`` stands for an earlier part of the name. Part k ended before the first use of any part from k on,
    so it is no longer than everything that was expanded up to there. ``T…_`` stands for an argument of the
    function that is being named, which ended before that function's first ``T…_``; each ``Z`` may begin the
    name of another one. A pack expansion repeats what it holds for each argument, half of the name at most.

        >>> _expansion_bound("_Z1fN1a1bES0_")  # f(a::b, a::b): S0_ is no longer than what is before it
        23
    """
    first: dict[int, int] = {}
    references = list(_REFERENCE.finditer(mangled, 2))
    keys: list[int | None] = []
    for row, found in enumerate(references):
        letters = found.group(1)
        key = None if letters is None else int(letters, 36) + 1 if letters else 0
        keys.append(key)
        if key is not None:
            first.setdefault(key, row)
    numbers = sorted(first, reverse=True)
    ended = dict(zip(numbers, accumulate((first[number] for number in numbers), min), strict=True))
    before: list[int] = []
    total = place = 0
    arguments: int | None = None  # what was expanded before the first T of this function
    for found, key in zip(references, keys, strict=True):
        total += found.start() - place
        place = found.start()
        before.append(total)
        if key is not None:
            total += before[ended[key]]
        elif found.group(2):
            arguments = None
        else:
            arguments = total if arguments is None else arguments
            total += arguments
        if total > _MAX_EXPANSION:
            return total
    total += len(mangled) - place
    return total * (len(mangled) // 2) if _REPEATED.search(mangled) else total


@cache
def _demangler() -> Callable[[str], str]:
    """libstdc++'s demangler; imported late, because not every session has names to demangle."""
    try:
        import cxxfilt

        try:
            demangle_with: Callable[[str], str] = cxxfilt.Demangler("libc.so.6", "libstdc++.so.6").demangle
        except (OSError, AttributeError):
            demangle_with = cxxfilt.demangle
        demangle_with("_Z1fv")
    except Exception:  # cxxfilt's own error cannot be named when importing cxxfilt is what raises it
        return _unchanged
    return demangle_with


def _unchanged(name: str) -> str:
    return name
