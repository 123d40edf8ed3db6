"""Certificates of an authority made for one test session."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.contract.otlp_servers import Tls

collect_ignore = ["families"]  # their tests run where they are added: test_added_families.py


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """An authority, a server for localhost and a client."""
    if not shutil.which("openssl"):
        pytest.skip("the openssl program, which makes the certificates, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    _openssl(folder, "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority",
             "-keyout", "authority.key", "-out", "authority.pem")  # fmt: skip
    for name, extension in (
        ("server", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ("client", "basicConstraints=CA:FALSE"),
    ):
        (folder / "extensions").write_text(extension)
        _openssl(folder, f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name}",
                 "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        _openssl(folder, f"x509 -req -in {name}.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2",
                 "-extfile", "extensions", "-out", f"{name}.pem")  # fmt: skip
    files = ("authority.pem", "server.pem", "server.key", "client.pem", "client.key")
    return Tls(*(str(folder / file) for file in files))


def _openssl(folder: Path, command: str, *more: str) -> None:
    done = subprocess.run(
        ["openssl", *command.split(), *more], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
