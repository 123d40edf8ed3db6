"""Kernels of Debian's suites, unpacked into a cache outside the checkout; nothing is installed.

In: the names of lines of kernels, as ``python -m tests.vm.kernels 6.1 7``. Out: folders with ``vmlinuz`` and
``lib/modules/<release>``. Packages come from the mirrors that this machine's apt uses, verified by Debian's keys,
through apt folders of its own.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "otelgpu", "vm")
SUITES: Final = {
    "5.10": "bullseye-security",
    "6.1": "bookworm-security",
    "6.12": "trixie-security",
    "7": "sid",
}
"""Line of kernels → the suite that has the newest of it. `sid` moves on: what it has is taken once."""

_KEYS: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_APT_TIMEOUT_S: Final = 600


class RigError(Exception):
    """The rig cannot be had or did not do its part; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """An unpacked kernel."""

    line: str
    release: str

    @property
    def folder(self) -> Path:
        """With ``vmlinuz`` and ``lib/modules/<release>``."""
        return CACHE / "kernels" / self.release

    @property
    def modules(self) -> Path:
        """Its modules, with what depmod wrote."""
        return self.folder / "lib" / "modules" / self.release


def fetched(line: str) -> Kernel | None:
    """The kernel of a line, if it is in the cache."""
    try:
        release = (CACHE / f"{line}.release").read_text().strip()
    except OSError:
        return None
    kernel = Kernel(line, release)
    return kernel if (kernel.folder / "vmlinuz").exists() else None


def fetch(line: str) -> Kernel:
    """The kernel of a line; from its suite if it is not in the cache. Raises `RigError`."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two at once would write into one folder
        kernel = fetched(line)
        if kernel is None:
            kernel = _Suite(SUITES[line]).unpack(line)
            (CACHE / f"{line}.release").write_text(kernel.release)
    return kernel


class _Suite:
    """apt with folders and sources of its own."""

    def __init__(self, name: str) -> None:
        self._folder = CACHE / "apt" / name
        for each in ("sources", "lists/partial", "cache/archives/partial", "packages"):
            (self._folder / each).mkdir(parents=True, exist_ok=True)
        for tool in ("apt-get", "dpkg-deb", "depmod"):
            if shutil.which(tool) is None:
                raise RigError(
                    f"no {tool} here: kernels are unpacked on Debian, with kmod installed (`make vm`)"
                )
        source = {
            "Types": "deb",
            "URIs": _mirror(security=name.endswith("-security")),
            "Suites": name,
            "Components": "main",
            "Signed-By": _KEYS,
        }
        (self._folder / "sources" / "suite.sources").write_text(
            "".join(f"{key}: {value}\n" for key, value in source.items())
        )
        self._options = [
            *("-qq", "-o", "Dir::Etc::sourcelist=/dev/null"),
            *("-o", f"Dir::Etc::sourceparts={self._folder}/sources"),
            *("-o", f"Dir::State::lists={self._folder}/lists", "-o", "Dir::State::status=/dev/null"),
            *("-o", f"Dir::Cache={self._folder}/cache", "-o", "APT::Sandbox::User=root"),
            *("-o", "Acquire::Retries=3", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"),
        ]

    def unpack(self, line: str) -> Kernel:
        self._apt("apt-get", "update")
        depends = self._apt("apt-cache", "depends", "linux-image-amd64")
        release = re.search(r"Depends: linux-image-(\S+)", depends)
        if release is None:
            raise RigError(f"linux-image-amd64 of {self._folder.name} names no kernel:\n{depends}")
        kernel = Kernel(line, release[1])
        target, unpacked = kernel.folder, kernel.folder.with_suffix(".new")
        if not target.exists():
            packages = self._folder / "packages"
            self._apt("apt-get", "download", *self._packages(kernel.release), folder=packages)
            shutil.rmtree(unpacked, ignore_errors=True)
            unpacked.mkdir(parents=True)
            for package in packages.glob("*.deb"):
                _run("dpkg-deb", "-x", str(package), str(unpacked))
                package.unlink()
            _arrange(unpacked, kernel.release)
            unpacked.rename(target)  # what was interrupted is not taken for what is there
        return kernel

    def _packages(self, release: str) -> list[str]:
        """Image and modules are one package until 6.x, two later."""
        split = subprocess.run(
            ["apt-cache", *self._options, "show", f"linux-binary-{release}"],
            capture_output=True, check=False,
        )  # fmt: skip
        if split.returncode or not split.stdout:
            return [f"linux-image-{release}"]
        return [f"linux-binary-{release}", f"linux-modules-{release}"]

    def _apt(self, program: str, *words: str, folder: Path | None = None) -> str:
        return _run(program, *self._options, *words, folder=folder)


def _mirror(*, security: bool) -> str:
    """Where this machine's apt gets Debian's packages from."""
    listed = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()
    ending = "/debian-security" if security else "/debian"
    found = [uri for uri in listed if uri.rstrip("/").endswith(ending)]
    if not found:
        raise RigError(
            f"apt's sources name no mirror that ends in {ending}: kernels come from Debian's suites"
        )
    return found[0]


def _arrange(root: Path, release: str) -> None:
    """`vmlinuz` and `lib/modules` are where `Kernel` says, whatever the package's layout."""
    if not (root / "lib" / "modules").exists():
        (root / "lib").mkdir(exist_ok=True)
        (root / "lib" / "modules").symlink_to("../usr/lib/modules")
    boot = root / "boot" / f"vmlinuz-{release}"
    place = boot if boot.exists() else root / "lib" / "modules" / release / "vmlinuz"
    (root / "vmlinuz").symlink_to(place.relative_to(root))
    _run("depmod", "-b", str(root), release)


def _run(*command: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_APT_TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RigError(
            f"{command[0]} has not ended after {_APT_TIMEOUT_S} s: is the mirror reachable?"
        ) from error
    if done.returncode:
        raise RigError(f"{' '.join(command)} failed:\n{done.stderr or done.stdout}")
    return done.stdout


def main(lines: list[str]) -> int:
    """Fetch those, or all."""
    try:
        for line in lines or SUITES:
            if line not in SUITES:
                raise RigError(f"no line of kernels {line}: {', '.join(SUITES)} are known")
            if fetched(line) is None:
                print(f"  FETCH    {line}, of Debian's {SUITES[line]}: 60 to 110 MB …", flush=True)
            kernel = fetch(line)
            print(f"  KERNEL   {kernel.release}", flush=True)
    except RigError as error:
        print(f"vm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
