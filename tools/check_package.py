"""Build the sdist, the wheel from that sdist, and try the wheel in a fresh environment.

Proves what a user meets: everything needed is in the sdist, the wheel carries its BPF objects, types and
licences, and the installed program starts where there is no clang.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


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
    ]
    licences = [f"licenses/LICENSES/{path.name}" for path in ROOT.glob("LICENSES/*")]
    page = [str(path.relative_to(ROOT)) for path in ROOT.glob("otelgpu/*/page/*")]
    wanted = [*objects, *licences, *page, "otelgpu/py.typed", "licenses/LICENSE", "entry_points.txt"]
    return [want for want in wanted if not any(name.endswith(want) for name in names)]


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
        print(f"  WHEEL    {wheel.name} ({wheel.stat().st_size // 1024} KiB)", flush=True)

        fresh = scratch / "venv"
        run(sys.executable, "-m", "venv", fresh)
        constraints = ROOT / "requirements/constraints.txt"
        run(fresh / "bin/python", *pip[1:], "install", "-c", constraints, wheel)
        # From another folder and with nothing in PATH: only what was installed can answer.
        version = run(fresh / "bin/otelgpu", "--version", cwd=scratch, env={"PATH": "/nonexistent"})
        print(f"  INSTALL  {version.strip()}")

        (ROOT / "dist").mkdir(exist_ok=True)
        for built in (sdist, wheel):
            (ROOT / "dist" / built.name).write_bytes(built.read_bytes())
    print("  READY    dist/")


if __name__ == "__main__":
    main()
