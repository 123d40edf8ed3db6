"""Kernel, native and Python frames become one stack: at the interpreter's evaluation frames, and nothing is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.profiles.merged_stacks import INTERNAL, is_evaluator, is_internal, is_tail_call, merge
from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame

EVALUATOR = "_PyEval_EvalFrameDefault"


def native(names: str) -> list[Frame]:
    return [Frame(type=FrameType.NATIVE, name=name, system_name=name) for name in names.split()]


def evaluating(frames: list[Frame]) -> list[bool]:
    return [is_evaluator(frame.name) for frame in frames]


def python(names: str) -> tuple[list[Frame], list[bool]]:
    """``*`` marks a function that was entered from C."""
    words = names.split()
    frames = [Frame(type=FrameType.PYTHON, name=word.strip("*")) for word in words]
    return frames, [word.endswith("*") for word in words]


def merged(natives: str, pythons: str, **settings: bool) -> str:
    found = native(natives.replace("EVAL", EVALUATOR))
    result = merge([], found, evaluating(found), *python(pythons), **settings)
    reported = " ".join(frame.name for frame in result.frames).replace(EVALUATOR, "EVAL")
    unmatched = result.evaluators_unmatched, result.python_unmatched
    return reported if unmatched == (0, 0) else f"{reported} {unmatched}"


def test_each_evaluation_frame_is_replaced_by_its_run() -> None:
    natives = "cudaLaunchKernel launch_op EVAL _PyEval_Vector slot_tp_call EVAL main"
    assert (
        merged(natives, "forward* generate handler*")
        == "cudaLaunchKernel launch_op forward generate handler main"
    )


def test_up_to_3_10_each_python_frame_has_an_evaluation_frame() -> None:
    natives = "read EVAL _PyFunction_Vectorcall EVAL _PyFunction_Vectorcall EVAL PyEval_EvalCode main"
    assert merged(natives, "a* b* c*") == "read a b c PyEval_EvalCode main"


def test_kernel_frames_come_first() -> None:
    kernel = [Frame(type=FrameType.KERNEL, name="vfs_write")]
    frames = merge(kernel, native("write"), [False], *python("save*")).frames
    assert [frame.name for frame in frames] == ["vfs_write", "write", "save"]


def test_a_c_extension_between_python_frames_stays_and_the_interpreters_own_go() -> None:
    natives = (
        "malloc EVAL _PyEval_Vector method_vectorcall qsort my_extension cfunction_vectorcall_O EVAL main"
    )
    assert merged(natives, "inner* outer*") == "malloc inner qsort my_extension outer main"
    assert "method_vectorcall qsort" in merged(natives, "inner* outer*", fold=False)


def test_what_called_the_outermost_python_frame_is_not_folded() -> None:
    assert merged("EVAL _PyEval_Vector main", "top*") == "top _PyEval_Vector main"


def test_an_evaluation_that_has_only_begun_has_no_frame_yet() -> None:
    assert merged("EVAL _PyEval_Vector EVAL main", "caller*") == "EVAL caller main (1, 0)"
    frames, entries = python("begun* caller*")
    both = native(f"{EVALUATOR} {EVALUATOR} main")
    result = merge([], both, evaluating(both), [None, frames[1]], entries)
    assert [frame.name for frame in result.frames] == ["caller", "main"]
    assert result.evaluators_unmatched == 0


def test_of_python_frames_that_are_cut_off_the_innermost_are_matched() -> None:
    assert merged("EVAL x EVAL y EVAL", "a* b*", python_cut=True) == "a x b y EVAL (1, 0)"


def test_of_native_frames_that_are_cut_off_the_python_frames_come_last() -> None:
    assert merged("read EVAL x", "a b* c d*", native_cut=True) == "read a b x c d (0, 1)"
    assert merged("read", "a* b*") == "read a b (0, 2)"


def test_runs_that_are_too_many_are_the_first_evaluation_frames() -> None:
    assert merged("read EVAL x EVAL main", "a* b* c*") == "read a b x c main (0, 1)"


def test_a_run_whose_entry_was_cut_off_is_a_run() -> None:
    assert merged("EVAL x EVAL", "a* b c", python_cut=True) == "a x b c"


def test_parts_of_functions_and_trampolines_are_known() -> None:
    assert is_evaluator("_PyEval_EvalFrameDefault.cold") and is_tail_call("_TAIL_CALL_LOAD_FAST.llvm.12")
    assert is_internal("method_vectorcall.lto_priv.0") and is_internal("py::forward:/app/model.py")
    assert not is_internal("my_vectorcall") and not is_evaluator("_PyEval_Vector")
    assert not any(map(is_evaluator, INTERNAL))


NATIVE_NAMES = st.sampled_from([EVALUATOR, "write", "my_extension", "_PyEval_Vector", "slot_tp_call", "main"])


@given(
    st.integers(0, 3),
    st.lists(NATIVE_NAMES, max_size=20),
    st.lists(st.booleans(), max_size=20),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_nothing_is_lost_and_nothing_changes_its_order(
    kernels: int, natives: list[str], entries: list[bool], native_cut: bool, python_cut: bool, fold: bool
) -> None:
    kernel = [Frame(type=FrameType.KERNEL, name=f"k{n}") for n in range(kernels)]
    outer = [
        Frame(type=FrameType.NATIVE, name=name, system_name=name, address=n) for n, name in enumerate(natives)
    ]
    inner = [Frame(type=FrameType.PYTHON, name=f"p{n}") for n in range(len(entries))]
    result = merge(
        kernel,
        outer,
        evaluating(outer),
        inner,
        entries,
        native_cut=native_cut,
        python_cut=python_cut,
        fold=fold,
    )
    reported = list(result.frames)
    assert reported[:kernels] == kernel
    assert [frame for frame in reported if frame.type is FrameType.PYTHON] == inner
    left = [frame for frame in reported if frame.type is FrameType.NATIVE]
    assert [frame for frame in outer if frame in left] == left
    gone = [frame for frame in outer if frame not in left]
    replaced = sum(is_evaluator(frame.name) for frame in gone)
    assert replaced == sum(evaluating(outer)) - result.evaluators_unmatched
    assert all(is_evaluator(f.name) or (fold and bool(inner) and is_internal(f.name)) for f in gone)
    runs = sum(entries) + (bool(entries) and not entries[-1])
    assert result.evaluators_unmatched - result.python_unmatched == sum(evaluating(outer)) - runs


@st.composite
def call_chains(draw: st.DrawFn) -> tuple[list[Frame], list[Frame], list[bool], list[str]]:
    """A true history of calls, outermost first: what runs in which evaluation frame, and with what between."""
    natives, pythons, entries, truth = native("_start main"), [], [], ["_start", "main"]
    for number in range(draw(st.integers(0, 6))):
        between = draw(st.lists(st.sampled_from(["_PyEval_Vector", "ext", "qsort"]), max_size=3))
        natives += native(" ".join(between))
        outermost = number == 0
        truth += [name for name in between if outermost or not is_internal(name)]
        natives += native(EVALUATOR)
        for place in range(draw(st.integers(1, 4))):
            pythons.append(Frame(type=FrameType.PYTHON, name=f"f{number}.{place}"))
            entries.append(place == 0)
            truth.append(f"f{number}.{place}")
    leaf = draw(st.lists(st.sampled_from(["read", "malloc"]), max_size=2))
    return (
        [*natives, *native(" ".join(leaf))][::-1],
        pythons[::-1],
        entries[::-1],
        [*truth, *leaf][::-1],
    )


@given(call_chains())
def test_a_true_history_comes_out_as_it_was(
    chain: tuple[list[Frame], list[Frame], list[bool], list[str]],
) -> None:
    natives, pythons, entries, truth = chain
    result = merge([], natives, evaluating(natives), pythons, entries)
    assert [frame.name for frame in result.frames] == truth
    assert (result.evaluators_unmatched, result.python_unmatched) == (0, 0)
