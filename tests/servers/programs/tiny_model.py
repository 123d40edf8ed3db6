"""A model of llama.cpp's that says ``token `` for ever.

One layer of random numbers, which leave alone what every token has in its first dimension; the token that has most of
it is next.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

WORD = "token\u2581"  # SentencePiece's space
WIDTH, HEADS, INNER = 64, 2, 128
TOKENS = (
    *(("<unk>", gguf.TokenType.UNKNOWN), ("<s>", gguf.TokenType.CONTROL), ("</s>", gguf.TokenType.CONTROL)),
    *((f"<0x{byte:02X}>", gguf.TokenType.BYTE) for byte in range(256)),
    (WORD, gguf.TokenType.NORMAL),
)
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def write(path: Path) -> None:
    """A file in GGUF."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(1 << 13)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([name for name, _ in TOKENS])
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types([kind for _, kind in TOKENS])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weights in tensors().items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors() -> dict[str, np.ndarray]:
    """By their names, in rows of what they make."""
    numbers = np.random.default_rng(1)

    def some(*shape: int) -> np.ndarray:
        return numbers.normal(scale=0.02, size=shape).astype(np.float32)

    def beside_the_first(*shape: int) -> np.ndarray:
        weights = some(*shape)
        weights[0] = 0
        return weights

    embedding, output = some(len(TOKENS), WIDTH), some(len(TOKENS), WIDTH)
    embedding[:, 0] = 1
    output[-1, 0] = 10
    ones = np.ones(WIDTH, dtype=np.float32)
    return {
        "token_embd.weight": embedding,
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_q.weight": some(WIDTH, WIDTH),
        "blk.0.attn_k.weight": some(WIDTH, WIDTH),
        "blk.0.attn_v.weight": some(WIDTH, WIDTH),
        "blk.0.attn_output.weight": beside_the_first(WIDTH, WIDTH),
        "blk.0.ffn_norm.weight": ones,
        "blk.0.ffn_gate.weight": some(INNER, WIDTH),
        "blk.0.ffn_up.weight": some(INNER, WIDTH),
        "blk.0.ffn_down.weight": beside_the_first(WIDTH, INNER),
        "output_norm.weight": ones,
        "output.weight": output,
    }
