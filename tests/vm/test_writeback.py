"""What kernels write back is charged to the control group whose process made the pages dirty: on other kernels.

This machine's may have control groups of version 1, which have no such account.
"""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from tests.vm import guest
from tests.vm.guest import SCRIPTS
from tests.vm.kernels import SUITES, fetched

MIB = 1 << 20

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]


@pytest.mark.parametrize("line", [line for line in SUITES if fetched(line) is not None] or ["7"])
def test_each_group_is_charged_what_its_processes_wrote(line: str) -> None:
    kernel = fetched(line)
    if kernel is None or (missing := guest.missing_programs()):
        pytest.skip("no kernel in the cache: run `make vm`" if kernel is None else str(missing))
    python = shlex.quote(sys.executable)
    command = f"{python} -m tests.vm.in_guest.writeback $(bash {SCRIPTS}/disk.sh)"
    done = guest.run(kernel, command, timeout_s=600)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    alone, beside = found["surroundings"]
    for said, group, own, others in ((alone, "/a", 40, 0), (beside, "/b", 10, 30)):
        assert 0 <= said["dirtied_bytes"] - own * MIB < MIB
        writes = said["group_writes"]
        assert (writes["group"], list(writes["bytes_by_device"])) == (group, ["loop0"])
        assert 0 <= writes["bytes_by_device"]["loop0"] - (own + others) * MIB < MIB
        assert others * MIB <= writes["others_dirtied_bytes"] <= (others + 1) * MIB
    requests = found["requests"]
    assert requests.keys() == {"first a loop0 write", "second b loop0 write"}
    assert all(0 <= size - 40 * MIB < MIB for size in requests.values())
