"""Build ``kubectl otelgpu`` as one file, and what krew installs it from.

    python -m tools.kubectl_plugin [FOLDER] [--uri URI]

Writes to FOLDER (default ``dist``) ``kubectl-otelgpu``, a zip archive that Python executes (PEP 441); it goes on PATH.
The same with the licence as ``kubectl-otelgpu.tar.gz``, and ``otelgpu.yaml``, deploy/krew/otelgpu.yaml with the
digest of that archive and ``--uri``, where it is going to be. From the same tree the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import kubectl_otelgpu

ROOT: Final = Path(__file__).resolve().parents[1]
NAME: Final = "kubectl-otelgpu"
_INTERPRETER: Final = b"#!/usr/bin/env python3\n"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # zip has no earlier one


def build_program() -> bytes:
    """The plug-in, to be executed."""
    packed = io.BytesIO()
    package = ROOT / "kubectl_otelgpu"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.glob("*.py")):
            _add(archive, f"kubectl_otelgpu/{path.name}", path.read_bytes())
        _add(archive, "__main__.py", (package / "__main__.py").read_bytes())
        _add(archive, "LICENSE", (ROOT / "LICENSE").read_bytes())
    return _INTERPRETER + packed.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)


def build_archive(program: bytes) -> bytes:
    """What krew unpacks."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data, mode in ((NAME, program, 0o755), ("LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)


def krew_manifest(archive: bytes, uri: str) -> str:
    """deploy/krew/otelgpu.yaml of this version and archive."""
    text = (ROOT / "deploy/krew/otelgpu.yaml").read_text(encoding="utf-8")
    for placeholder, value in (
        ("version: VERSION", f"version: v{kubectl_otelgpu.__version__}"),
        ("uri: URI", f"uri: {uri}"),
        ("sha256: SHA256", f"sha256: {hashlib.sha256(archive).hexdigest()}"),
    ):
        text = text.replace(placeholder, value)
    return text


def main() -> None:
    """Write all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=ROOT / "dist", type=Path)
    parser.add_argument("--uri", default=f"https://example.invalid/{NAME}.tar.gz")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    program = options.folder / NAME
    program.write_bytes(build_program())
    program.chmod(0o755)
    archive = build_archive(program.read_bytes())
    (options.folder / f"{NAME}.tar.gz").write_bytes(archive)
    (options.folder / "otelgpu.yaml").write_text(krew_manifest(archive, options.uri), encoding="utf-8")
    print(
        f"  PLUG-IN  {program} ({program.stat().st_size // 1024} KiB), {NAME}.tar.gz and otelgpu.yaml for krew"
    )


if __name__ == "__main__":
    main()
