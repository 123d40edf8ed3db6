"""The operator and the node of the backward pass that a stack is in, by the names of its frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.profiles.torch_operators import operator_of
from otelgpu.model.profiles import FrameType

EMPTY = "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>, std::optional<c10::ScalarType>)"
MM = "at::_ops::mm::redispatch(c10::DispatchKeySet, at::Tensor const&, at::Tensor const&)"
ADD = "at::_ops::add_Tensor::call(at::Tensor const&, at::Tensor const&, c10::Scalar const&)"
NODE = "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)"
ACCUMULATE = "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)"
ENGINE = "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"
PYTHON = "train.py:12 forward"


def of(*names: str) -> tuple[str, str]:
    return operator_of(
        (FrameType.PYTHON if name == PYTHON else FrameType.NATIVE, name) for name in ("malloc", *names)
    )


@pytest.mark.parametrize(
    ("names", "reported"),
    [
        ((), ("", "")),
        ((PYTHON,), ("", "")),
        ((EMPTY, PYTHON), ("empty_memory_format", "")),
        ((EMPTY, MM, PYTHON), ("mm", "")),
        ((EMPTY, PYTHON, MM), ("empty_memory_format", "")),  # Python code that an operator called
        ((ADD,), ("add_Tensor", "")),
        ((EMPTY, MM, NODE, ENGINE), ("mm", "MmBackward0")),
        ((EMPTY, ACCUMULATE, ENGINE), ("empty_memory_format", "AccumulateGrad")),
        ((EMPTY, NODE, MM), ("empty_memory_format", "MmBackward0")),  # a node that an operator ran
        (("at::_ops::mm::call_somebody()",), ("", "")),
        (("at::native::mm(at::Tensor const&)", "my_at::operators()"), ("", "")),
    ],
)
def test_the_operator_is_the_outermost_below_python_and_the_node(
    names: tuple[str, ...], reported: tuple[str, str]
) -> None:
    assert of(*names) == reported


@given(st.lists(st.tuples(st.sampled_from(list(FrameType)), st.text())))
def test_any_names_are_read(frames: list[tuple[FrameType, str]]) -> None:
    operator_of(frames)
