"""A library into processes that see other files, have other numbers or are another user's: by descriptors alone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from otelgpu.kernel.injection.server import read_library
from tests.kernel.observing import OTELGPU
from tests.kernel.test_live_injection import FAKE_GPU
from tests.rig import build_fakes, missing_compiler
from tests.rig.injection.container import container, innermost_child, missing_namespaces
from tests.rig.injection.repeated import await_dormant, build_busy, inject_once, running

NOBODY = 65534


@pytest.fixture(scope="module")
def busy_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing := missing_compiler():
        pytest.skip(missing)
    return build_busy(tmp_path_factory.mktemp("busy"))


@pytest.mark.parametrize("who", [{}, {"user": NOBODY}, {"own_users": True}], ids=["root", "user", "users"])
@pytest.mark.parametrize("mode", ["threads", "numbers"])
def test_a_process_in_a_container_gets_a_library_that_it_cannot_see(
    busy_program: Path, tmp_path: Path, mode: str, who: dict[str, Any]
) -> None:
    if missing := missing_namespaces(own_users="own_users" in who):
        pytest.skip(missing)
    with running(busy_program, mode, container(tmp_path, busy_program, **who)) as busy:
        root = Path(f"/proc/{busy.tgid}/root")
        assert not (root / str(read_library().path).lstrip("/")).exists()
        assert os.statvfs(root).f_flag & os.ST_RDONLY
        busy.before = busy.counts
        for _ in range(3):
            assert inject_once(busy.tgid).answer == 1
            assert await_dormant(busy), (busy.counts, busy.before, busy.left_behind)
        copies = {line.split()[4] for line in libraries(busy.tgid)}
        assert len(copies) == 1, "the library that is there serves again"
        busy.end()
        assert busy.code == 0, busy.said


def test_who_could_write_our_file_by_what_he_is_given_is_refused(busy_program: Path, tmp_path: Path) -> None:
    if missing := missing_namespaces():
        pytest.skip(missing)
    if os.statvfs(read_library().path).f_flag & os.ST_RDONLY:
        pytest.skip("this checkout is on a read-only mount: he could not")
    without = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    with running(busy_program, "numbers", container(tmp_path, busy_program)) as busy:
        attach = (OTELGPU, "attach", "--source=inject", "--export=file:/dev/null", "-p", str(busy.tgid))
        done = subprocess.run((*without, *attach), stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert "it is in a container, and could write to otelgpu's own file" in done.stderr
        assert not libraries(busy.tgid)
        busy.end()
        assert busy.code == 0, busy.said


def await_cuda(outer: int) -> int:
    """The process that it has become, once it has the fake runtime."""
    for _ in range(500):
        tgid = innermost_child(outer)
        if "libcudart" in Path(f"/proc/{tgid}/maps").read_text():
            return tgid
        time.sleep(0.02)
    raise TimeoutError("the client does not start")


def libraries(tgid: int) -> list[str]:
    """Lines of its map of memory."""
    lines = Path(f"/proc/{tgid}/maps").read_text().splitlines()
    return [line for line in lines if line.endswith(read_library().path.name)]


def test_a_profile_of_one_in_a_container_has_gpu_frames(tmp_path: Path) -> None:
    if missing := missing_compiler() or missing_namespaces():
        pytest.skip(missing)
    folded, root = tmp_path / "kernel.folded", tmp_path / "root"
    root.mkdir()
    command = container(root, build_fakes() / "cuda_client")
    env = {**os.environ, "LD_LIBRARY_PATH": str(build_fakes()), **FAKE_GPU}
    with subprocess.Popen((*command, "--calls=30000", "--sleep-us=2000"), env=env) as outer:
        tgid = await_cuda(outer.pid)
        try:
            profile = (OTELGPU, "profile", "-t", "kernel", "-d", "4", "-o", folded, "--inject", "-p")
            done = subprocess.run(
                (*profile, str(tgid)), stderr=subprocess.PIPE, text=True, timeout=60, check=False
            )
            assert outer.poll() is None
        finally:
            os.kill(tgid, signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    lines = [line for line in folded.read_text().splitlines() if line.startswith("gpu_kernel_time")]
    assert any("cudaLaunchKernel" in line and "GPU: flash_fwd" in line for line in lines), lines
