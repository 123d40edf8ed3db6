"""What a model has to compute and to read for a token, from its configuration. Pure.

In: ``config.json`` as Hugging Face's transformers writes it, of a decoder. Out: :class:`ModelShape`.

FLOPs of a token: 2 for each parameter that is multiplied with, forward (Kaplan et al. 2020, arXiv:2001.08361, 2.1), and
4·layers·heads·head size·context for attention; three times that in training: the appendix B of PaLM, arXiv:2204.02311,
6N + 12·L·H·Q·T. Causal attention is counted in full, as there. The table of embeddings is looked up, not multiplied
with; of mixtures of experts those count that a token goes through. A decode step reads each weight once, and of each
sequence keys and values of its context: 2·layers·KV heads·head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

MOST: Final = 1 << 40
"""Of a dimension: beyond, the file is none of a model."""
_BYTES: Final[Mapping[str, float]] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
_TYPES: Final = {"float32": "tf32", "float16": "fp16", "bfloat16": "bf16"}


class UnknownShape(ValueError):
    """A configuration that lacks what is needed, or is none."""


class ModelShape(Struct, frozen=True, kw_only=True):
    """``parameters``: those that a token is multiplied with; ``stored``: all; ``dtype``: of peaks."""

    parameters: int
    stored: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    bytes_each: float
    dtype: str

    def flops_per_token(self, context: int, *, training: bool) -> float:
        """Of one token at a context of so many."""
        forward = 2.0 * self.parameters + 4.0 * self.layers * self.heads * self.head_size * context
        return 3.0 * forward if training else forward

    def kv_bytes_per_token(self) -> float:
        """Of the cache of keys and values."""
        return 2.0 * self.layers * self.kv_heads * self.head_size * self.bytes_each

    def decode_bytes(self, sequences: int, context: int) -> float:
        """That a decode step reads at least."""
        return self.stored * self.bytes_each + sequences * context * self.kv_bytes_per_token()


class _Config(Struct, kw_only=True):
    """The members that are read; GPT-2's are called otherwise."""

    hidden_size: int = 0
    n_embd: int = 0
    num_hidden_layers: int = 0
    n_layer: int = 0
    num_attention_heads: int = 0
    n_head: int = 0
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 0
    n_inner: int | None = None
    moe_intermediate_size: int | None = None
    vocab_size: int = 0
    tie_word_embeddings: bool = False
    hidden_act: str = ""
    num_local_experts: int = 0
    num_experts: int = 0
    num_experts_per_tok: int = 0
    torch_dtype: str = ""
    dtype: str = ""
    model_type: str = ""


def parse_model(content: bytes) -> ModelShape:
    """Raises :class:`UnknownShape` with what is missing or wrong."""
    try:
        config = msgspec.json.decode(content, type=_Config)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownShape(f"no configuration of a model: {str(error).replace('`', '')}") from error
    hidden = config.hidden_size or config.n_embd
    layers = config.num_hidden_layers or config.n_layer
    heads = config.num_attention_heads or config.n_head
    named = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": config.vocab_size,
    }
    missing = [name for name, value in named.items() if not 0 < value < MOST]
    if missing:
        raise UnknownShape(f"no {', '.join(missing)} in it: no configuration of a decoder")
    head_size = config.head_dim or hidden // heads
    kv_heads = config.num_key_value_heads or heads
    inner = config.intermediate_size or config.n_inner or 4 * hidden
    experts = config.num_local_experts or config.num_experts
    if not all(
        0 <= value < MOST for value in (head_size, kv_heads, inner, experts, config.num_experts_per_tok)
    ):
        raise UnknownShape("a dimension in it is out of range")
    attention = hidden * head_size * (2 * heads + 2 * kv_heads)
    matrices = 3 if config.hidden_act in ("silu", "swiglu", "geglu") or "gemma" in config.model_type else 2
    mlp = matrices * hidden * (config.moe_intermediate_size or inner if experts else inner)
    used = (config.num_experts_per_tok or 1) if experts else 1
    table = hidden * config.vocab_size
    stored = layers * (attention + mlp * max(experts, 1)) + (
        table if config.tie_word_embeddings else 2 * table
    )
    written = config.dtype or config.torch_dtype
    return ModelShape(
        parameters=layers * (attention + mlp * used) + table,
        stored=stored,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        bytes_each=_BYTES.get(written, 2),
        dtype=_TYPES.get(written, "fp8" if written.startswith("float8") else "bf16"),
    )
