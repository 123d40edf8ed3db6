"""A family is added by adding files: a copy of the tree, three families put into it, and nothing else of it changed.

``families/`` has what somebody would add: one without records, one with records, and AMD's HIP, whole, with its own
tests. tests/kernel/test_hip_family.py runs the last against a fake libamdhip64.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.checkout import FAMILIES, Checkout, missing_for_checkout, with_families

pytestmark = pytest.mark.slow

NAMES = ("noop", "noop_records", "hip")
DOCUMENTED = {
    *("docs/reference/signals/gpu-hip.md", "docs/reference/signals/noop_records.md"),
    "otelgpu/cli/loss_reasons/noop_records.json",
}
ALL_FAMILIES = (
    *("tests/unit/engine/test_registry.py", "tests/unit/engine/test_clashes.py"),
    *("tests/unit/engine/test_call_families.py", "tests/unit/engine/test_presentation.py"),
    *("tests/unit/engine/test_house.py", "tests/unit/test_docs.py"),
    *("tests/unit/test_profile_docs.py", "tests/unit/render/test_top.py", "tests/unit/families/gpu/hip"),
    *("tests/unit/test_links.py", "tests/unit/test_site.py", "tests/unit/test_layering.py"),
)
"""Tests that look at all families, and those that HIP brings along."""
CLASHES = "tests/unit/engine/test_clashes.py::test_no_two_tables_mean_different_things_by_one_name"
NUMBERS = "tests/unit/engine/test_call_families.py::test_each_family_whose_calls_have_stacks_has_a_number_of_its_own"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    if missing := missing_for_checkout():
        pytest.skip(f"needs {missing}")
    made = with_families(tmp_path_factory.mktemp("added") / "tree", *NAMES)
    documented = made.python("-m", "tools.document")
    assert documented.returncode == 0, documented.stderr
    return made


def files_of(name: str) -> set[str]:
    """What a family consists of."""
    tree = FAMILIES / name
    return {str(path.relative_to(tree)) for path in tree.rglob("*.*") if "__pycache__" not in path.parts}


def run_tests(checkout: Checkout, *which: str) -> tuple[int, str]:
    done = checkout.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *which)
    return done.returncode, done.stdout + done.stderr


def test_adding_families_adds_files_and_edits_none(checkout: Checkout) -> None:
    """Built and documented: each family's own files, and generated pages for each that exports something."""
    wanted = set().union(*map(files_of, NAMES)) | DOCUMENTED
    assert checkout.status() == dict.fromkeys(wanted, "??")


def test_they_are_found_and_each_is_observed_that_has_records(checkout: Checkout) -> None:
    said = checkout.python(
        "-c",
        "import otelgpu; from otelgpu.engine import registry as r;"
        "print(otelgpu.__file__, *r.with_records(), '|', *r.without_records())",
    ).stdout
    file, recorded, always = said.split(maxsplit=1)[0], *said.split("|")
    assert Path(file).is_relative_to(checkout.root)  # it is the copy that is looked at
    assert {"hip", "noop_records"} <= set(recorded.split())
    assert "noop" in always.split()
    assert "noop_records" not in always.split()


SESSION = """
import numpy as np
from otelgpu.engine import registry
from otelgpu.engine.pipeline import Pipeline
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch, Tick
from otelgpu.model.resource import resource
families = registry.with_records()
types = {name: read_image(name).btf for name in families}
made = Pipeline(families, types, seed=1, own=resource({}), start_unix_ns=0)
records = np.zeros(13, dtype=types["noop_records"].dtype("noop_called"))
batch = Batch(family="noop_records", kind="noop_called", records=records)
spans = [*made.feed(batch), *made.feed(Tick(time_ns=10**10)), *made.finish()]
made.read_metrics()
print(len(spans), "noop" in made.handlers.taking, "noop_records" in made.handlers.taking)
print(made.metrics.value("otelgpu.losses", **{"otelgpu.family": "noop_records", "otelgpu.reason": "taken_for_nothing"}))
"""


def test_records_reach_the_handler_of_their_family_and_what_it_counts_is_exported(checkout: Checkout) -> None:
    done = checkout.python("-c", SESSION)
    assert done.stdout.split() == ["0", "False", "True", "13.0"], done.stderr


def test_the_tests_that_look_at_all_families_pass_with_three_more(checkout: Checkout) -> None:
    code, said = run_tests(checkout, *ALL_FAMILIES)
    assert code == 0, said[-3000:]
    assert "hip" in (checkout.root / "docs/reference/signals/gpu-hip.md").read_text()


HIP = "otelgpu/families/gpu/hip"
MINE = "families.gpu.cuda and of families.gpu.hip"
CLASHING = (
    (f"{HIP}/signals.py", '"gpu.hip.errors"', '"gpu.cuda.errors"', f"gpu.cuda.errors: of {MINE}"),
    (f"{HIP}/signals.py", 'memory_names("hip")', 'memory_names("cuda")', f"gpu.cuda.memory.usage: of {MINE}"),
    (
        f"{HIP}/descriptions.py",
        '"hip.size"',
        '"cuda.size"',
        "cuda.size: described by families.gpu.cuda and by families.gpu.hip",
    ),
    (
        "bpf/hip/hip.h",
        "CALL_FAMILY = 15",
        "CALL_FAMILY = 1",
        "families cuda and hip both have CALL_FAMILY = 1",
    ),
)
"""File, what it has, what another family has, what is said of that."""


@pytest.fixture
def clashing(checkout: Checkout) -> Iterator[Checkout]:
    """The copy, with a HIP that takes names and a number of CUDA's; it is as it was afterwards."""
    for file, old, new, _ in CLASHING:
        text = (checkout.root / file).read_text()
        assert text.count(old) == 1
        (checkout.root / file).write_text(text.replace(old, new))
    assert checkout.python("hatch_build.py").returncode == 0
    yield checkout
    for file, *_ in CLASHING:
        shutil.copy(FAMILIES / "hip" / file, checkout.root / file)
    assert checkout.python("hatch_build.py").returncode == 0


def test_what_another_family_has_fails_the_tests(clashing: Checkout) -> None:
    code, said = run_tests(clashing, "-vvv", CLASHES, NUMBERS)
    assert code == 1
    assert "2 failed" in said
    assert [complaint for *_, complaint in CLASHING if complaint not in said] == []
