"""speedscope's file format: a profile of weighted stacks for each sample type. Pure.

Source: https://www.speedscope.app/file-format-schema.json (in npm ``speedscope`` too), "SampledProfile". Units
that it does not know are "none". Stacks come in the order of the tree, so its "time order" view looks like the
flame graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from otelgpu.model.profiles import ProfileColumns
from otelgpu.render.frames import Frame
from otelgpu.render.page_columns import clean
from otelgpu.render.stack_tree import StackTree, trees

SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_UNITS: Final = frozenset({"nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"})


def speedscope(batches: Sequence[ProfileColumns], *, title: str = "Profile") -> bytes:
    """The file's bytes."""
    frames: dict[Frame, int] = {}
    profiles = [_profile(tree, frames) for tree in trees(batches)]
    document = {
        "$schema": SCHEMA,
        "shared": {"frames": [_frame(frame) for frame in frames]},
        "profiles": profiles,
        "name": clean(title),
        "activeProfileIndex": 0,
        "exporter": "otelgpu",
    }
    return msgspec.json.encode(document)


def _frame(frame: Frame) -> dict[str, Any]:
    made: dict[str, Any] = {"name": clean(frame.label)}
    if frame.file:
        made["file"] = clean(frame.file)
    if frame.line:
        made["line"] = frame.line
    return made


def _profile(tree: StackTree, frames: dict[Frame, int]) -> dict[str, Any]:
    numbers = [frames.setdefault(frame, len(frames)) for frame in tree.frames]
    samples: list[list[int]] = []
    weights: list[int] = []
    path: list[int] = []
    values = np.rint(tree.own[:, 0]).astype(np.int64).tolist()
    for frame, depth, value in zip(tree.frame.tolist(), tree.depth.tolist(), values, strict=True):
        if depth:
            del path[depth - 1 :]
            path.append(numbers[frame])
        if value > 0:
            samples.append(path.copy())
            weights.append(value)
    return {
        "type": "sampled",
        "name": clean(f"{tree.type.type} ({tree.type.unit})"),
        "unit": tree.type.unit if tree.type.unit in _UNITS else "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
