"""A one-layer OCI image of a folder, for ``ctr -n k8s.io images import``.

``python3 oci.py FOLDER NAME:TAG OUT.tar [ENTRYPOINT…]``; NAME with its registry, ``docker.io/rig/pause``. Source of the
layout: OCI image format specification 1.1 (image-layout, config, manifest).
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_image(folder: Path, name: str, out: Path, entrypoint: Sequence[str]) -> None:
    """Write ``out``, an archive with one image."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as layer:
        layer.add(folder, arcname=".")
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    kind = "application/vnd.oci.image"
    layers = [
        blob(raw.getvalue(), f"{kind}.layer.v1.tar")
    ]  # packed it would take seconds, here and where it is read
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layers[0]["digest"]]},
    }
    described = blob(json.dumps(config).encode(), f"{kind}.config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": described,
        "layers": layers,
    }
    top = blob(json.dumps(manifest).encode(), f"{kind}.manifest.v1+json")
    top["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [top]}).encode(),
        **{f"blobs/sha256/{digest}": data for digest, data in blobs.items()},
    }
    with tarfile.open(out, "w") as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    write_image(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
