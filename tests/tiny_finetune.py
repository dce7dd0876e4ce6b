"""A model folder and data folders small enough for fine-tunes in tests, and settings that use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from mufree import lm
from mufree.lm.tokenizer import byte_tokenizer

# hidden size 64: mlx-lm's quantisation takes groups of 64
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 257,
    "tie_word_embeddings": False,
}
_TURNS = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}|{% endfor %}"
TEMPLATE = _TURNS + "{% if add_generation_prompt %}a:{% endif %}"


def make_model(folder: Path, seed: int = 3, **changes: Any) -> Path:
    """A model folder as ``mlx_lm.load`` reads it, with a byte tokenizer that has a chat template."""
    mx.random.seed(seed)
    config = CONFIG | changes
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return lm.export(folder, lm.build(config), config, tokenizer)


def make_data(folder: Path, *, train: int = 22, valid: int = 8, test: int = 6, form: str = "text") -> Path:
    """A data folder of short rows; a set of 0 rows is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("valid", valid), ("test", test)):
        lines = [json.dumps(_row(form, name, number)) for number in range(rows)]
        if lines:
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def _row(form: str, name: str, number: int) -> dict[str, Any]:
    ask, answer = f"{name[0]}{number} + {number}", "abcab" * (1 + number % 3) + str(number * 2)
    if form == "text":
        return {"text": f"{ask} = {answer}"}
    if form == "chat":
        return {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]}
    return {"prompt": ask, "completion": answer}


def settings(model: Path, data: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a fine-tune of a second or so."""
    return {
        "model": str(model),
        "data": str(data),
        "adapter_path": str(out),
        "train": True,
        "iters": 12,
        "batch_size": 2,
        "num_layers": 2,
        "max_seq_length": 40,
        "steps_per_report": 4,
        "steps_per_eval": 5,
        "save_every": 6,
        "val_batches": -1,
        "seed": 5,
        "lora_parameters": {"rank": 4, "dropout": 0.1, "scale": 10.0},
        **changes,
    }
