"""A certificate that a test's server shows, made on the spot by the openssl program."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> Path:
    """A PEM file with a key and a certificate for localhost that it signed itself."""
    key, certificate, both = folder / "key.pem", folder / "certificate.pem", folder / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


def make_expired_certificate(folder: Path) -> Path:
    """The same, whose time was over yesterday."""
    both = make_certificate(folder)
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    done = subprocess.run(
        ["openssl", "x509", "-in", certificate, "-signkey", key, "-days", "-1"],
        check=True, capture_output=True,
    )  # fmt: skip
    certificate.write_bytes(done.stdout)
    both.write_bytes(key.read_bytes() + done.stdout)
    return both
