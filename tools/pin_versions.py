"""Write the versions that are installed in this environment, and the hashes of their files, to ``requirements/``.

Run it by ``make constraints`` after an upgrade that passed the tests. uv asks the index that it is configured for
(``UV_DEFAULT_INDEX``; a mirror will do, hashes are of files) what other Pythons want besides and what each file hashes
to; of files those for CPython on Linux are taken, x86-64 and aarch64, and sources. With ``--check`` it asks nobody, and
fails where something has no hash, or is not in all files the same.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "requirements"
ALL: Final = "constraints.txt"
PARTS: Final = {
    "program.txt": ["otelgpu[gpu,names]"],
    "build.txt": ["hatchling"],
    "example-service.txt": ["flask", "gunicorn"],
    "cuda-runtime.txt": ["nvidia-cuda-runtime-cu12"],
}
"""What the images of deploy/ install of it: file → what it is for."""

SERVERS: Final = ROOT / "tests" / "servers"
"""Whose ``requirements*.in`` are what servers are made of, in environments of their own; vLLM and SGLang less what is
in ``overrides.txt``."""

MACHINES: Final = ("x86_64", "aarch64")
PYTHONS: Final = range(11, 16)
"""Minor versions that markers are asked for; of 3.15 only what is there already."""

_HEADER: Final = "# {}, to the version and the file. Written by `make constraints` (tools/pin_versions.py).\n"
_PINNED: Final = re.compile(r"[\w.-]+==[\w.]+(?: ; [^\\]+)?(?: --hash=sha256:[0-9a-f]{64})+")


def main() -> None:
    """Ask and write, or look."""
    if sys.argv[1:] == ["--check"]:
        check()
        return
    everything = ["otelgpu[gpu,names,diagnose,mcp,test,bench,docs,dev]"]
    packages = {package["name"]: requirement(package) for package in resolved(installed(), everything)}
    write(ALL, "What `make setup` installs", packages.values())
    pins = "".join(map(unhashed, packages.values()))
    for name, wanted in PARTS.items():
        part = [packages[package["name"]] for package in resolved(pins, wanted)]
        write(name, f"What the images install for {', '.join(wanted)}", part)
    for wanted_by_servers in sorted(SERVERS.glob("requirements*.in")):
        wanted = wanted_by_servers.read_text(encoding="utf-8").splitlines()
        servers = resolved("", wanted, "--overrides", str(SERVERS / "overrides.txt"))
        name = wanted_by_servers.with_suffix(".txt").name
        write(name, "What the servers are made of", map(requirement, servers), SERVERS)


def check() -> None:
    """Exits where a line has no version or no hash, or another one than in the file of all."""
    everything = set(logical_lines(FOLDER / ALL))
    for path in FOLDER.glob("*.txt"):
        lines = logical_lines(path)
        wrong = [line for line in lines if not _PINNED.fullmatch(line) or line not in everything]
        if wrong or not lines:
            sys.exit(f"{path.name}: not pinned by version and hash as in {ALL}: {wrong}; make constraints")
    print(f"{len(everything)} requirements are pinned by hash")


def installed() -> str:
    """What is in this environment, as pip says it."""
    freeze = [sys.executable, "-m", "pip", "freeze", "--exclude-editable", "--exclude", "otelgpu"]
    return subprocess.run(freeze, check=True, capture_output=True, text=True).stdout


def resolved(pins: str, wanted: Iterable[str], *options: str) -> list[Mapping[str, Any]]:
    """The packages of a ``pylock.toml`` (PEP 751) that some Python here needs for it, in the versions of ``pins``.

    ``options``: of uv's.
    """
    with tempfile.TemporaryDirectory() as folder:
        constraints, lock, source = (Path(folder, name) for name in ("pins.txt", "pylock.toml", "wanted.in"))
        constraints.write_text(pins)
        source.write_text("\n".join(each.replace("otelgpu", f"{ROOT}") for each in wanted))
        uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", *options]
        files = ["-c", str(constraints), "-o", str(lock), str(source)]
        subprocess.run([*uv, "--python-version", "3.11", *files], check=True, stdout=subprocess.DEVNULL)
        packages = tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]
    return [package for package in packages if package["name"] != "otelgpu" and any(wanted_by(package))]


def wanted_by(package: Mapping[str, Any]) -> list[bool]:
    """Whether by each Python that is supported."""
    marker = Marker(package.get("marker", "python_version > '3'"))
    linux = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    return [
        marker.evaluate(
            {
                **linux,
                "platform_machine": machine,
                "python_version": f"3.{minor}",
                "python_full_version": f"3.{minor}.0",
            }
        )
        for minor in PYTHONS
        for machine in MACHINES
    ]


def requirement(package: Mapping[str, Any]) -> str:
    """Its line, continued over one for each file."""
    files = [file for file in package.get("wheels", ()) if runs_here(file_name(file))]
    files += [package["sdist"]] if "sdist" in package else []
    if not files:
        sys.exit(f"{package['name']} {package['version']} has no file for Linux")
    marker = "" if all(wanted_by(package)) else f" ; {package['marker']}"
    hashes = sorted(f"--hash=sha256:{file['hashes']['sha256']}" for file in files)
    return " \\\n    ".join([f"{package['name']}=={package['version']}{marker}", *hashes]) + "\n"


def file_name(file: Mapping[str, Any]) -> str:
    """Of a file of a package."""
    return str(file.get("name") or file["url"].rpartition("/")[2])


def runs_here(wheel: str) -> bool:
    """Whether a CPython that is supported may install it on Linux with glibc."""
    for tag in parse_wheel_filename(wheel)[3]:
        on_linux = tag.platform.startswith(("manylinux", "linux")) and tag.platform.endswith(MACHINES)
        python = re.fullmatch(r"(py|cp)3(\d*)", tag.interpreter)
        if python is None or not (on_linux or tag.platform == "any"):
            continue
        is_stable = python[1] == "py" or tag.abi == "abi3"
        if is_stable or (tag.abi == tag.interpreter and int(python[2] or 0) in PYTHONS):
            return True
    return False


def write(name: str, what: str, lines: Iterable[str], folder: Path = FOLDER) -> None:
    """One of the files."""
    whole = list(lines)
    (folder / name).write_text(_HEADER.format(what) + "".join(whole), encoding="utf-8")
    print(f"  PINNED   {len(whole)} packages in {folder.relative_to(ROOT) / name}")


def unhashed(line: str) -> str:
    """A requirement without its hashes."""
    return line.partition(" \\")[0] + "\n"


def logical_lines(path: Path) -> list[str]:
    """Requirements of a file for pip, each in one line; without comments."""
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return re.sub(r"\s*\\\n\s*", " ", text).splitlines()


if __name__ == "__main__":
    main()
