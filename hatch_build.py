"""Compile ``bpf/<family>/<family>.bpf.c`` to ``otelgpu/_bpf/<family>.bpf.o``, three libraries, a program.

Comes in: the C sources and headers under ``bpf/`` and the system's clang and libbpf headers. Goes out: one
BPF object per source, stripped of DWARF (its BTF stays: user space takes every offset from it). The same
inputs give the same bytes, wherever the tree lies.

It is hatchling's build hook (``pip install .``, ``pip install -e .``) and a plain script
(``python hatch_build.py`` is ``make bpf``), so it imports nothing outside the standard library but the hook's
base class. It must never need a network, root, or the kernel that it is run on.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script by a Python without hatchling
    BuildHookInterface = object  # type: ignore[assignment,misc]

OBJECTS = Path("otelgpu/_bpf")
STAMPS = Path("build/bpf")

# bpf_tracing.h reads registers by these names, so an object belongs to one architecture.
TARGET_ARCH = {"x86_64": "x86", "aarch64": "arm64"}

# The in-process source: a library for the programs that are observed, and the layout of what it writes.
INJECT = Path("otelgpu/_inject")
INJECT_SOURCES = Path("otelgpu/inject")
INJECT_LIBRARY, INJECT_LAYOUT = INJECT / "libotelgpu_inject.so", INJECT / "memory.o"
INJECT_FLAGS = [
    *(
        "-shared",
        "-fPIC",
        "-std=gnu11",
        "-O2",
        "-fvisibility=hidden",
        "-ftls-model=initial-exec",
        "-fexceptions",
    ),
    *("-include", str(INJECT_SOURCES / "glibc.h"), "-D__TARGET_ARCH_x86", "-Ibpf", f"-I{INJECT_SOURCES}"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
]

# The publisher for Python services: an extension for the limited API, so one library serves every CPython.
BRIDGE = Path("otelgpu/bridge")
BRIDGE_LIBRARY = BRIDGE / "_publisher.abi3.so"
BRIDGE_FLAGS = [
    *("-shared", "-fPIC", "-std=gnu11", "-O2", "-fno-plt", "-Wl,-z,now", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Werror"),
]
# Thread contexts are found through TLS descriptors; on aarch64 they are what compilers make anyway.
TLS_DESCRIPTORS = {"x86_64": ["-mtls-dialect=gnu2"], "aarch64": []}

# What makes unwind tables: a static program without a C library, so that it runs whatever the system has.
UNWINDER_SOURCES = Path("otelgpu/unwinder")
UNWINDER = Path("otelgpu/_native/unwinder")
UNWINDER_FLAGS = [
    *("-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-std=gnu11", "-O2", "-Ibpf"),
    *("-Wl,-z,noexecstack", "-Wall", "-Wextra", "-Werror"),
]

# What outlives files that are cut off while they are mapped.
CUT_FILES_SOURCE = Path("otelgpu/kernel/cut_files.c")
CUT_FILES = Path("otelgpu/_native/libcut_files.so")
LIBRARY_FLAGS = ["-shared", "-fPIC", "-std=gnu11", "-O2", "-Wl,-z,now", "-Wall", "-Wextra", "-Werror"]

# What hands libbpf's warnings on, and drops the rest.
BPF_MESSAGES_SOURCE = Path("otelgpu/kernel/bpf_messages.c")
BPF_MESSAGES = Path("otelgpu/_native/libbpf_messages.so")

# What picks the kernel's types that BPF objects need.
CORE_BTF_SOURCE = Path("otelgpu/kernel/core_btf.c")
CORE_BTF = Path("otelgpu/_native/libcore_btf.so")

# What writes spans from rows of operations.
SPANWRITER_SOURCES = Path("otelgpu/spanwriter")
SPANWRITER = Path("otelgpu/_native/libspanwriter.so")
SPANWRITER_FLAGS = [
    *("-shared", "-fPIC", "-std=gnu11", "-O2", "-fvisibility=default", "-Wl,-z,now"),
    *("-Wall", "-Wextra", "-Wconversion", "-Werror"),
]

FLAGS = [
    *("-target", "bpf", "-mcpu=v3", "-std=gnu11", "-O2", "-g", "-fno-ident", "-fdebug-compilation-dir=."),
    *("-Wall", "-Wextra", "-Wpadded", "-Werror", "-Ibpf/lib"),
]

INSTALL = """\
  Debian, Ubuntu:  apt-get install clang llvm libbpf-dev
  Fedora, RHEL:    dnf install clang llvm libbpf-devel
  In a clone, `make setup` does it. None of them is needed at run time."""


class BuildError(Exception):
    """The objects cannot be built; the message says what to do."""


class BpfObject(NamedTuple):
    """One object to build. Paths are relative to the root of the tree."""

    name: str
    source: Path

    @property
    def path(self) -> Path:
        """Where the object goes."""
        return OBJECTS / f"{self.name}.bpf.o"

    @property
    def stamp(self) -> Path:
        """What it was last built from: command, compiler, digest of each input and of the object."""
        return STAMPS / f"{self.name}.json"


def objects(root: Path) -> list[BpfObject]:
    """The objects that the tree at ``root`` should have, by name; BuildError if there are none."""
    sources = sorted(path.relative_to(root) for path in root.glob("bpf/*/*.bpf.c"))
    found = {source.name.removesuffix(".bpf.c"): source for source in sources}
    if len(found) != len(sources):
        raise BuildError(f"two BPF sources share a file name: {', '.join(map(str, sources))}")
    if not found:
        raise BuildError(f"no bpf/*/*.bpf.c under {root}: the source tree is incomplete")
    return [BpfObject(name, source) for name, source in sorted(found.items())]


def command() -> list[str]:
    """The compiler's flags on this machine, without file names."""
    machine = platform.machine()
    if machine not in TARGET_ARCH:
        raise BuildError(f"no BPF build for {machine!r}; supported: {', '.join(TARGET_ARCH)}")
    # <asm/*.h> lies in a per-architecture folder on Debian, which the bpf target does not search.
    multiarch = f"/usr/include/{machine}-linux-gnu"
    extra = ["-idirafter", multiarch] if Path(multiarch).is_dir() else []
    return [*FLAGS, f"-D__TARGET_ARCH_{TARGET_ARCH[machine]}", *extra]


def build(root: Path, *, force: bool = False) -> list[Path]:
    """Bring every object up to date and delete those that have no source; return their paths.

    Only what changed is compiled, judged by content: the command, the compiler's version, and each file
    that the compiler read (its own dependency list, so headers count, libbpf's too).
    """
    root = root.resolve()
    flags = command()
    compiler = _compiler()
    wanted = objects(root)
    stale = [each for each in wanted if force or not _is_current(root, each, flags, compiler)]
    if stale:
        _require(compiler, flags)
        (root / OBJECTS).mkdir(parents=True, exist_ok=True)
        (root / STAMPS).mkdir(parents=True, exist_ok=True)

    def compile_one(each: BpfObject) -> None:
        print(f"  BPF      {each.path}", flush=True)
        _compile(root, each, flags, compiler)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, stale))
    for path in (root / OBJECTS).glob("*.bpf.o"):
        if path.relative_to(root) not in [each.path for each in wanted]:
            print(f"  REMOVE   {path.relative_to(root)}", flush=True)
            path.unlink()
    return [each.path for each in wanted]


def build_inject(root: Path, *, force: bool = False) -> list[Path]:
    """Bring the in-process source up to date and return its files; none where it cannot be had.

    It is for x86-64, and needs a compiler that links for this machine: gcc, or clang with gcc's libraries.
    """
    root = root.resolve()
    linker = shutil.which("gcc") or shutil.which("clang")
    sources = sorted(root.glob(f"{INJECT_SOURCES}/*.[ch]"))
    compiler = _compiler()
    if platform.machine() != "x86_64" or not sources:
        return []
    if linker is None or not compiler:
        kept = [path for path in (INJECT_LIBRARY, INJECT_LAYOUT) if (root / path).exists()]
        print(f"  SKIP     {INJECT_LIBRARY}: no compiler; {'the one there is kept' if kept else 'not built'}")
        return kept
    version = subprocess.run([linker, "--version"], capture_output=True, text=True, check=False)
    headers = sorted(root.glob("bpf/cuda/*.h")) + sorted(root.glob("bpf/lib/*.h"))
    stamp = {
        "flags": INJECT_FLAGS,
        "compilers": [version.stdout.partition("\n")[0], compiler["version"]],
        "inputs": {str(path.relative_to(root)): _digest(path) for path in [*sources, *headers]},
    }
    remembered = root / STAMPS.parent / "inject.json"
    built = [INJECT_LIBRARY, INJECT_LAYOUT]
    if not force and _is_remembered(root, remembered, stamp, built):
        return built
    (root / INJECT).mkdir(parents=True, exist_ok=True)
    remembered.parent.mkdir(parents=True, exist_ok=True)
    layout = root / INJECT_SOURCES / "memory.c"
    with tempfile.TemporaryDirectory(dir=remembered.parent) as scratch:
        for path, words in (
            (INJECT_LAYOUT, [compiler["clang"], *command(), "-ffreestanding", "-Ibpf", "-c", layout]),
            (
                INJECT_LIBRARY,
                [linker, *INJECT_FLAGS, *(s for s in sources if s.suffix == ".c" and s != layout)],
            ),
        ):
            print(f"  INJECT   {path}", flush=True)
            output = Path(scratch, path.name)
            _call([*words, "-o", output], root, f"{Path(str(words[0])).name} failed on {path}")
            output.chmod(0o755 if path == INJECT_LIBRARY else 0o644)
            output.replace(root / path)
    _remember(root, remembered, stamp, built)
    return built


def build_bridge(root: Path, *, force: bool = False) -> list[Path]:
    """Bring the publisher for Python services up to date and return it; none where it cannot be had.

    It needs gcc (clang makes TLS descriptors only since 18) and Python.h of any CPython from 3.11. Without the
    library the bridge says so at run time and leaves the service as it is.
    """
    root = root.resolve()
    machine, compiler, headers = platform.machine(), shutil.which("gcc"), _python_headers()
    sources = sorted(path.relative_to(root) for path in root.glob(f"{BRIDGE}/*.[ch]"))
    if machine not in TLS_DESCRIPTORS or not sources:
        return []
    if compiler is None or headers is None:
        kept = [BRIDGE_LIBRARY] if (root / BRIDGE_LIBRARY).exists() else []
        missing = "no gcc" if compiler is None else "no Python.h (Debian: python3-dev, Fedora: python3-devel)"
        print(f"  SKIP     {BRIDGE_LIBRARY}: {missing}; {'the one there is kept' if kept else 'not built'}")
        return kept
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    flags = [*BRIDGE_FLAGS, *TLS_DESCRIPTORS[machine]]
    stamp = {
        "flags": flags,
        "compiler": version.stdout.partition("\n")[0],
        "inputs": {str(path): _digest(root / path) for path in sources},
    }
    remembered = root / STAMPS.parent / "bridge.json"
    if not force and _is_remembered(root, remembered, stamp, [BRIDGE_LIBRARY]):
        return [BRIDGE_LIBRARY]
    remembered.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=remembered.parent) as scratch:
        print(f"  BRIDGE   {BRIDGE_LIBRARY}", flush=True)
        output = Path(scratch, BRIDGE_LIBRARY.name)
        code = [path for path in sources if path.suffix == ".c"]
        _call(
            [compiler, *flags, f"-I{headers}", *code, "-o", output],
            root, f"gcc failed on {BRIDGE_LIBRARY}",
        )  # fmt: skip
        output.chmod(0o755)
        output.replace(root / BRIDGE_LIBRARY)
    _remember(root, remembered, stamp, [BRIDGE_LIBRARY])
    return [BRIDGE_LIBRARY]


def build_unwinder(root: Path, *, force: bool = False) -> list[Path]:
    """Bring the program that makes unwind tables up to date and return it; none where it cannot be had.

    It is for x86-64. Without it stacks are walked by frame pointers, which is said and counted at run time.
    """
    sources = sorted(path.relative_to(root) for path in root.glob(f"{UNWINDER_SOURCES}/*.[ch]"))
    if platform.machine() != "x86_64":
        return []
    headers = [path.relative_to(root) for path in root.glob("bpf/profile/unwind_row.h")]
    return _build_native(root, UNWINDER, UNWINDER_FLAGS, sources, headers, force=force)


def build_cut_files(root: Path, *, force: bool = False) -> list[Path]:
    """Bring the library up to date that outlives files that are cut off, and return it; none without a compiler."""
    sources = [CUT_FILES_SOURCE] if (root / CUT_FILES_SOURCE).exists() else []
    return _build_native(root, CUT_FILES, LIBRARY_FLAGS, sources, [], force=force)


def build_bpf_messages(root: Path, *, force: bool = False) -> list[Path]:
    """Bring the library up to date that filters libbpf's messages, and return it; none without a compiler."""
    sources = [BPF_MESSAGES_SOURCE] if (root / BPF_MESSAGES_SOURCE).exists() else []
    return _build_native(root, BPF_MESSAGES, LIBRARY_FLAGS, sources, [], force=force)


def build_core_btf(root: Path, *, force: bool = False) -> list[Path]:
    """Bring the library up to date that picks types for BPF objects, and return it; none without a compiler."""
    sources = [CORE_BTF_SOURCE] if (root / CORE_BTF_SOURCE).exists() else []
    return _build_native(root, CORE_BTF, LIBRARY_FLAGS, sources, [], force=force)


def build_spanwriter(root: Path, *, force: bool = False) -> list[Path]:
    """Bring the library up to date that writes spans, and return it; none without a compiler: numpy does it then."""
    sources = sorted(path.relative_to(root) for path in root.glob(f"{SPANWRITER_SOURCES}/*.[ch]"))
    return _build_native(root, SPANWRITER, SPANWRITER_FLAGS, sources, [], force=force)


def _build_native(
    root: Path, built: Path, flags: list[str], sources: list[Path], headers: list[Path], *, force: bool
) -> list[Path]:
    """One file of ``otelgpu/_native``, with gcc, or clang with a linker."""
    root = root.resolve()
    linker = shutil.which("gcc") or shutil.which("clang")
    if not sources:
        return []
    if linker is None:
        kept = [built] if (root / built).exists() else []
        print(f"  SKIP     {built}: no compiler; {'the one there is kept' if kept else 'not built'}")
        return kept
    version = subprocess.run([linker, "--version"], capture_output=True, text=True, check=False)
    stamp = {
        "flags": flags,
        "compiler": version.stdout.partition("\n")[0],
        "inputs": {str(path): _digest(root / path) for path in [*sources, *headers]},
    }
    remembered = root / STAMPS.parent / f"{built.stem}.json"
    if not force and _is_remembered(root, remembered, stamp, [built]):
        return [built]
    (root / built).parent.mkdir(parents=True, exist_ok=True)
    remembered.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=remembered.parent) as scratch:
        print(f"  NATIVE   {built}", flush=True)
        output = Path(scratch, built.name)
        code = [path for path in sources if path.suffix == ".c"]
        _call([linker, *flags, *code, "-o", output], root, f"{Path(linker).name} failed on {built}")
        output.chmod(0o755)
        output.replace(root / built)
    _remember(root, remembered, stamp, [built])
    return [built]


def _python_headers() -> Path | None:
    """The folder of this Python's Python.h, else of the system's; a venv of Debian's Python has none itself."""
    candidates = [
        Path(sysconfig.get_path("include")),
        *sorted(Path("/usr/include").glob("python3.[1-9][0-9]")),
    ]
    usable = [path for path in candidates if (path / "Python.h").exists() and path.name >= "python3.11"]
    return usable[0] if usable else None


def _is_remembered(root: Path, remembered: Path, stamp: dict[str, Any], built: list[Path]) -> bool:
    """Whether ``built`` was built from what ``stamp`` says and is untouched since."""
    if not remembered.exists() or not all((root / path).exists() for path in built):
        return False
    return bool(
        json.loads(remembered.read_text()) == stamp | {"built": [_digest(root / path) for path in built]}
    )


def _remember(root: Path, remembered: Path, stamp: dict[str, Any], built: list[Path]) -> None:
    remembered.write_text(json.dumps(stamp | {"built": [_digest(root / path) for path in built]}, indent=1))


def _compiler() -> dict[str, str]:
    """The tools in PATH and the compiler's version; empty when there is no clang."""
    clang = shutil.which("clang")
    if clang is None:
        return {}
    version = subprocess.run([clang, "--version"], capture_output=True, text=True, check=False)
    strip = shutil.which("llvm-strip")
    return {"clang": clang, "version": version.stdout.partition("\n")[0], "strip": strip or ""}


def _require(compiler: dict[str, str], flags: list[str]) -> None:
    if not compiler:
        raise BuildError(f"clang was not found in PATH; it compiles the BPF programs.\n{INSTALL}")
    probe = "#if !__has_include(<bpf/bpf_helpers.h>)\n#error missing\n#endif\n"
    seen = subprocess.run(
        [compiler["clang"], *flags, "-E", "-o", os.devnull, "-x", "c", "-"],
        input=probe, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if seen.returncode and "missing" in seen.stderr:
        raise BuildError(f"libbpf's headers (<bpf/bpf_helpers.h>) were not found.\n{INSTALL}")
    if seen.returncode:
        raise BuildError(f"{compiler['clang']} cannot compile for BPF:\n{seen.stderr}\n{INSTALL}")


def _is_current(root: Path, each: BpfObject, flags: list[str], compiler: dict[str, str]) -> bool:
    try:
        stamp = json.loads((root / each.stamp).read_text())
        # Without a compiler, an object that its sources still match is as good as any.
        same_tools = not compiler or (stamp["flags"], stamp["compiler"]) == (flags, compiler)
        return same_tools and all(
            _digest(root / path) == digest
            for path, digest in {**stamp["inputs"], str(each.path): stamp["object"]}.items()
        )
    except (OSError, ValueError, KeyError):
        return False


def _compile(root: Path, each: BpfObject, flags: list[str], compiler: dict[str, str]) -> None:
    # A folder of its own, then one rename: two builds at once, or one that is cut short, leave whole objects.
    with tempfile.TemporaryDirectory(dir=root / STAMPS) as scratch:
        output, listing = Path(scratch, "object.o"), Path(scratch, "inputs.d")
        _call(
            [compiler["clang"], *flags, "-MD", "-MF", listing, "-MT", "x", "-c", each.source, "-o", output],
            root, f"clang rejected {each.source}",
        )  # fmt: skip
        if compiler["strip"]:  # -g drops DWARF and keeps .BTF and .BTF.ext
            _call([compiler["strip"], "-g", output], root, f"llvm-strip failed on {each.path}")
        inputs = _listed(listing.read_text())
        stamp = {
            "flags": flags,
            "compiler": compiler,
            "inputs": {path: _digest(root / path) for path in inputs},
            "object": _digest(output),
        }
        output.chmod(0o644)
        output.replace(root / each.path)
        written = Path(scratch, "stamp")
        written.write_text(json.dumps(stamp, indent=1))
        written.replace(root / each.stamp)


def _listed(rule: str) -> list[str]:
    """The files of a make rule (continued by backslashes): ``x: a.c b.h`` gives ``["a.c", "b.h"]``."""
    words = rule.partition(":")[2].replace("\\\n", " ").replace("\\ ", "\0").split()
    return sorted({word.replace("\0", " ") for word in words})


def _call(words: list[Any], root: Path, failure: str) -> None:
    done = subprocess.run(
        [str(word) for word in words], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"{failure}:\n{done.stderr or done.stdout}")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


BUILDS = (
    *(build, build_inject, build_bridge),
    *(build_unwinder, build_cut_files, build_bpf_messages, build_core_btf, build_spanwriter),
)


class BpfBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the objects in place, and puts them in the wheel although git ignores them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it packs (``version`` is "standard" or "editable")."""
        try:
            paths = [path for make in BUILDS for path in make(Path(self.root))]
        except BuildError as error:
            self.app.abort(f"otelgpu: {error}")
            raise  # abort() does not return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
        build_data["artifacts"].extend(f"/{path}" for path in paths)


def main(arguments: list[str]) -> int:
    """``hatch_build.py [--force]``: build in place."""
    try:
        for make in BUILDS:
            make(Path(__file__).parent, force="--force" in arguments)
    except BuildError as error:
        print(f"otelgpu: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
