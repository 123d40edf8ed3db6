"""What a server says it serves: its answer to ``GET /v1/models``. Pure.

In: JSON that may hold anything. Out: names of :class:`NamedModel`. Source: the OpenAI API's reference, "List models";
``root`` and ``parent`` are vLLM's and SGLang's (``ModelCard``): what was loaded, of a name to call it by, and what an
adapter is of.

Example: ``{"data": [{"id": "llama", "root": "meta-llama/Llama-3.1-8B", "parent": null}]}``: that repository, else a
folder that is called ``llama``.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from otelgpu.diagnose.utilization.model_places import NamedModel, is_name

PATH: Final = "/v1/models"
_MOST: Final = 64
"""Models that are looked at: one, and its adapters."""


class _Card(Struct):
    id: str = ""
    root: str | None = None
    parent: str | None = None


class _Answer(Struct):
    data: list[_Card]


def served_models(content: bytes) -> list[NamedModel]:
    """The names of the first that is no adapter, to be tried in this order; none where the answer is no list."""
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return []
    card = next((each for each in answer.data[:_MOST] if not each.parent), _Card())
    names = dict.fromkeys(name for name in (card.root or "", card.id) if is_name(name))
    return [NamedModel(name=name, by=PATH, serves=True) for name in names]
