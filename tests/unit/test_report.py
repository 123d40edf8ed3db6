"""The summary that ends a session shows names that observed programs chose, and takes none for its own language."""

from __future__ import annotations

import pytest

from otelgpu.agent import Outcome
from otelgpu.cli import observe
from otelgpu.signals.summary import Summary


@pytest.mark.parametrize("name", ["[unknown]+0x1000", "[/bold]", "k[link=file:/x]y", ":skull:"])
def test_a_name_with_brackets_is_shown_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary()
    summary.kernels[name] = summary.calls["cudaLaunchKernel"] = 3
    summary.errors[f"{name}: cudaErrorInvalidValue"] = 1
    library = f"/srv/{name}/libcudart.so.12"
    observe._print(
        Outcome(summary=summary, exported={}, libraries=[(library, 5, 0)], submitted={}, seconds=1.0)
    )
    shown = capsys.readouterr().err
    assert shown.count(name) == 3
    assert library in shown
