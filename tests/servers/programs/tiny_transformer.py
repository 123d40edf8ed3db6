"""The model of tiny_model.py in a folder as transformers has them, for vLLM and SGLang."""

from __future__ import annotations

import json
from pathlib import Path

import tiny_model
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(tiny_model.TOKENS),
    "hidden_size": tiny_model.WIDTH,
    "intermediate_size": tiny_model.INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": tiny_model.HEADS,
    "num_key_value_heads": tiny_model.HEADS,
    "max_position_embeddings": 1 << 13,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "chat_template": tiny_model.TEMPLATE,
}
NAMES = {
    "token_embd": "model.embed_tokens",
    "blk.0.attn_norm": "model.layers.0.input_layernorm",
    "blk.0.attn_q": "model.layers.0.self_attn.q_proj",
    "blk.0.attn_k": "model.layers.0.self_attn.k_proj",
    "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
    "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
    "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
    "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
    "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""By GGUF's."""


def write(folder: Path) -> None:
    """Its files."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    tokenizer().save(str(folder / "tokenizer.json"))
    weights = {
        f"{NAMES[name.removesuffix('.weight')]}.weight": numbers
        for name, numbers in tiny_model.tensors().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def tokenizer() -> Tokenizer:
    """Bytes, and the word."""
    made = Tokenizer(
        models.BPE(
            vocab={name: index for index, (name, _) in enumerate(tiny_model.TOKENS)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made
