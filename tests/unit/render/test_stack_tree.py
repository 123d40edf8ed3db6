"""Stacks become one tree: every value is kept, and what is narrow is folded and counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.profiles import FrameType, Function, Line, Location, ValueType
from otelgpu.model.resource import resource
from otelgpu.render.frames import Kind
from otelgpu.render.stack_tree import StackTree, differences, fold, tree, trees
from tests.unit.render.profile_columns import CPU, GPU, START, profile


def paths(made: StackTree, side: int = 0) -> dict[tuple[str, ...], tuple[float, float]]:
    """By path of labels, what is at a node itself and in all."""
    found: dict[tuple[str, ...], tuple[float, float]] = {}
    path: list[str] = []
    for node in range(1, len(made)):
        del path[made.depth[node] - 1 :]
        path.append(made.frames[made.frame[node]].label)
        assert tuple(path) not in found
        found[tuple(path)] = (made.own[node, side], made.total[node, side])
    return found


def check(made: StackTree) -> None:
    """The invariants of a tree."""
    total = made.own.copy()
    for node in range(len(made) - 1, 0, -1):
        assert made.parent[node] < node
        assert made.depth[node] == made.depth[made.parent[node]] + 1
        total[made.parent[node]] += total[node]
    assert np.array_equal(total, made.total)


def test_what_stacks_have_in_common_is_one_branch() -> None:
    [made] = trees([profile({("main", "a"): 3, ("main", "b", "c"): 4, ("main",): 2, ("other",): 1})])
    assert paths(made) == {
        ("main",): (2, 9),
        ("main", "a"): (3, 3),
        ("main", "b"): (0, 4),
        ("main", "b", "c"): (4, 4),
        ("other",): (1, 1),
    }
    assert made.total[0, 0] == 10
    check(made)


def test_children_fake_the_order_of_their_labels() -> None:
    [made] = trees([profile({("m", "z"): 1, ("m", "a"): 1, ("m", "k"): 5})])
    assert [made.frames[code].label for code in made.frame[1:]] == ["m", "a", "k", "z"]


def test_batches_with_tables_of_their_own_are_merged() -> None:
    one, other = profile({("main", "a"): 3, ("main", "b"): 1}), profile({("x",): 1, ("main", "b"): 4})
    [made] = trees([one, other])
    assert paths(made) == {("main",): (0, 8), ("main", "a"): (3, 3), ("main", "b"): (5, 5), ("x",): (1, 1)}
    assert made.observations == 4


def test_several_processes_each_have_a_frame() -> None:
    owners = [resource({"process.pid": pid, "process.executable.name": "python3"}) for pid in (1, 2)]
    [made] = trees([profile({("main",): 1}, owner=owner) for owner in owners])
    assert set(paths(made)) == {
        ("python3 (1)",),
        ("python3 (1)", "main"),
        ("python3 (2)",),
        ("python3 (2)", "main"),
    }


def test_python_frames_are_reported_by_line_and_native_ones_by_name() -> None:
    [made] = trees([profile({("py:step:7", "malloc"): 1, ("py:step:8", "malloc"): 1})])
    assert [labels for labels in paths(made) if len(labels) == 1] == [
        ("step (model.py:7)",),
        ("step (model.py:8)",),
    ]


def test_a_device_frame_says_that_it_is_one() -> None:
    [made] = trees([profile({("launch", "gpu:flash_fwd"): 1}, type_=GPU)])
    assert ("launch", "GPU: flash_fwd") in paths(made)


def test_inlined_functions_are_frames_of_their_own() -> None:
    base = profile({("main",): 5})
    inlined = Location(
        frame_type=FrameType.NATIVE,
        mapping=None,
        address=1,
        lines=(Line(function=1, line=0), Line(function=0, line=0)),
    )
    functions = tuple(Function(name=name, system_name="", file_name="") for name in ("caller", "inlined"))
    columns = type(base)(
        **{name: getattr(base, name) for name in base.__struct_fields__}
        | {"locations": (inlined,), "functions": functions}
    )
    [made] = trees([columns])
    assert paths(made) == {("caller",): (0, 5), ("caller", "inlined"): (5, 5)}


def test_a_stack_without_frames_is_shown_as_such() -> None:
    [made] = trees([profile({(): 3, ("main",): 1})])
    assert paths(made)[("[no stack]",)] == (3, 3)
    assert made.total[0, 0] == 4


def test_an_address_without_a_name_is_shown_with_its_file() -> None:
    base = profile({("main",): 1})
    bare = Location(frame_type=FrameType.NATIVE, mapping=0, address=0x12, lines=())
    columns = type(base)(
        **{name: getattr(base, name) for name in base.__struct_fields__} | {"locations": (bare,)}
    )
    assert list(paths(trees([columns])[0])) == [("libc.so.6+0x12",)]


def test_memory_in_use_is_that_of_the_last_interval() -> None:
    in_use = ValueType(type="gpu_memory_in_use", unit="bytes")
    early = profile({("a",): 100}, type_=in_use, start=START)
    late = profile({("a",): 30, ("b",): 1}, type_=in_use, start=START + 1)
    [made] = trees([late, early])
    assert paths(made) == {("a",): (30, 30), ("b",): (1, 1)}


def test_values_below_zero_are_left_out_and_counted() -> None:
    [made] = trees([profile({("a",): -5, ("b",): 2})])
    assert made.negative == 1
    assert made.total[0, 0] == 2


def test_cpu_and_device_time_make_one_tree_together() -> None:
    cpu = profile({("py:generate:42", "cudaLaunchKernel"): 10})
    device = profile({("py:generate:42", "cudaLaunchKernel", "gpu:flash_fwd"): 70}, type_=GPU)
    both, *_ = trees([cpu, device])
    assert both.type.type == "cpu + gpu"
    launch = ("generate (model.py:42)", "cudaLaunchKernel")
    assert paths(both)[launch] == (10, 80)
    assert paths(both)[(*launch, "GPU: flash_fwd")] == (70, 70)


def test_without_device_time_there_is_no_tree_of_both() -> None:
    assert [made.type for made in trees([profile({("a",): 1})])] == [CPU]


def test_two_profiles_are_two_values_of_one_tree() -> None:
    [made] = differences([profile({("a",): 1, ("b",): 2})], [profile({("b",): 6, ("c",): 7})])
    assert paths(made, 0) == {("a",): (1, 1), ("b",): (2, 2), ("c",): (0, 0)}
    assert paths(made, 1) == {("a",): (0, 0), ("b",): (6, 6), ("c",): (7, 7)}


def test_two_processes_compare_by_their_frames_whatever_their_numbers_and_lines() -> None:
    owners = [resource({"process.pid": pid, "process.executable.name": "python3"}) for pid in (1, 2)]
    ranks = [profile({("py:step:7", "a"): pid + 1}, owner=owner) for pid, owner in enumerate(owners)]
    [made] = differences([ranks[0]], [ranks[1], profile({("py:step:9", "a"): 5}, owner=owners[1])])
    assert paths(made, 0) == {("step (model.py)",): (0, 1), ("step (model.py)", "a"): (1, 1)}
    assert paths(made, 1)[("step (model.py)", "a")] == (7, 7)


def test_of_several_processes_on_a_side_those_of_one_name_compare() -> None:
    owners = [resource({"process.pid": pid, "process.executable.name": "python3"}) for pid in (1, 2, 3)]
    before, *after = [profile({("a",): 1}, owner=owner) for owner in owners]
    [made] = differences([before], after)
    assert made.total[1].tolist() == [1, 2]
    assert list(paths(made)) == [("python3",), ("python3", "a")]


def test_a_type_on_one_side_only_is_compared_with_nothing() -> None:
    made = differences([profile({("a",): 1}, type_=GPU)], [profile({("b",): 6})])
    assert [(each.type, each.total[0].tolist()) for each in made] == [(GPU, [1, 0]), (CPU, [0, 6])]


def test_nothing_makes_no_tree() -> None:
    assert trees([]) == []
    assert trees([profile({})]) == []


# -- folding ---------------------------------------------------------------------------------------------


def test_narrow_frames_are_folded_and_counted() -> None:
    [made] = trees([profile({("m", "wide"): 900, ("m", "x", "y"): 1, ("m", "z"): 2, ("n",): 97})])
    folded = fold(made, least_share=0.05)
    check(folded)
    found = {
        folded.frames[folded.frame[node]].label: (folded.total[node, 0], folded.folded[node])
        for node in range(1, len(folded))
    }
    assert found == {"m": (903, 0), "wide": (900, 0), "(narrower frames)": (3, 3), "n": (97, 0)}


def test_folding_keeps_at_most_so_many() -> None:
    [made] = trees([profile({("m", f"f{i}"): i + 1 for i in range(100)})])
    folded = fold(made, most=11)
    assert len(folded) <= 12
    assert folded.total[0, 0] == made.total[0, 0]
    check(folded)


def test_what_is_folded_on_one_side_is_kept_if_it_is_wide_on_the_other() -> None:
    [made] = differences([profile({("a",): 1000, ("b",): 1})], [profile({("a",): 1, ("b",): 1000})])
    assert len(fold(made, least_share=0.1)) == 3


names = st.sampled_from(["a", "b", "c", "d;", "py:f:1", "py:f:2", "k:x", "gpu:g"])


@given(
    st.lists(st.tuples(st.lists(names, max_size=6).map(tuple), st.integers(0, 9)), max_size=30),
    st.integers(2, 12),
)
def test_any_stacks_keep_their_values(rows: list[tuple[tuple[str, ...], int]], most: int) -> None:
    batch = profile(rows)
    made = tree([[batch]], CPU)
    check(made)
    wanted: Counter[tuple[str, ...]] = Counter()
    for stack, value in rows:
        wanted[_labels(stack)] += value
    found = paths(made)
    assert {path: own for path, (own, _) in found.items() if own} == {
        path: value for path, value in wanted.items() if value
    }

    folded = fold(made, most=most)
    check(folded)
    assert folded.total[0, 0] == made.total[0, 0]
    assert int(folded.folded.sum()) + int((folded.folded == 0).sum()) == len(made)
    # Each row's leaf went to a node that is on its way: the values under nodes are the same from either end.
    used = np.bincount(batch.stack, weights=batch.value, minlength=len(batch.stacks))
    rows_of = used[np.bincount(batch.stack, minlength=len(batch.stacks)) > 0]
    assert np.array_equal(np.bincount(folded.leaf, weights=rows_of, minlength=len(folded)), folded.own[:, 0])


def _labels(stack: tuple[str, ...]) -> tuple[str, ...]:
    columns = profile({stack: 1})
    [made] = trees([columns])
    path = [made.frames[code].label for code in made.frame[1:]]
    return tuple(path)


def test_kinds_follow_the_frames_types() -> None:
    [made] = trees([profile({("py:f:1", "native", "k:vfs_write"): 1, ("py:f:1", "launch", "gpu:k"): 1})])
    kinds = {made.frames[code].name: made.frames[code].kind for code in made.frame[1:]}
    assert kinds == {
        "f": Kind.PYTHON,
        "native": Kind.NATIVE,
        "vfs_write": Kind.KERNEL,
        "launch": Kind.NATIVE,
        "k": Kind.GPU,
    }
