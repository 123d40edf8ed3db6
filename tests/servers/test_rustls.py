"""An HTTPS server of axum-server as its users build it: no probe sees what rustls encrypts, and both commands say so.

It is built by ``tools/servers.sh rustls_server``; where that was not done these tests are skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.kernel.observing import OTELGPU, run_otelgpu
from tests.kernel.test_unread_tls import ask, serving
from tests.rig.certificates import make_certificate
from tests.servers.stacks import BUILT, PROGRAMS

PROGRAM: Final = BUILT / "rustls_server"
_LOCKED: Final = re.compile(r'name = "rustls"\nversion = "([\d.]+)"')


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PROGRAM.exists():
        pytest.skip(f"there is no {PROGRAM}: tools/servers.sh rustls_server builds it")
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("stripped", [False, True])
def test_check_names_rustls_and_its_version(certificate: Path, tmp_path: Path, stripped: bool) -> None:
    locked = _LOCKED.search((PROGRAMS / "rustls" / "Cargo.lock").read_text())
    assert locked is not None
    program = Path(shutil.copy(PROGRAM, tmp_path))
    if stripped:
        subprocess.run(["strip", program], check=True)
    with serving(program, certificate) as (process, port):
        ask(port, 0.1)
        checked = run_otelgpu("check", "--json", "--families=http", "-p", str(process.pid))
        process.communicate(timeout=60)
    (report,) = json.loads(checked.stdout)["processes"]
    assert f"what rustls {locked[1]} in {PROGRAM.name} encrypts, if anything" in json.dumps(report["blind"])


def test_a_session_says_how_many_tls_connections_of_rustls_it_did_not_read(certificate: Path) -> None:
    with serving(OTELGPU, "run", "--families=http", "--", PROGRAM, certificate) as (process, port):
        count = ask(port, 1)
        _, said = process.communicate(timeout=60)
    assert f"not read {count} TLS connections of Rust programs (rustls): " in said
    assert "Requests:" not in said
