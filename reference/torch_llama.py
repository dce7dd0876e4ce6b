"""mlx-lm's llama in PyTorch: the same function of the same config and weights, under the same names.

RMS norms, rotary positions on the two halves of a head, SwiGLU, causal attention, and a head of its own, whose logits
may be divided by a width multiplier (``mup.MuReadout``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

Config = Mapping[str, Any]


class Rotary(nn.Module):
    """Rotary positions: entry i of a head is turned with entry i + size / 2."""

    def __init__(self, size: int, base: float) -> None:
        super().__init__()
        # Not a buffer: it must keep its float64, whatever the model is cast to.
        self.rates = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, heads, positions, size) to the same."""
        angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * self.rates
        cos, sin = (f(angles).to(x.device, x.dtype) for f in (torch.cos, torch.sin))
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


class Attention(nn.Module):
    """Causal attention; query heads may share keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, size = config["hidden_size"], config["head_dim"]
        heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = size
        self.q_proj = nn.Linear(width, heads * size, bias=False)
        self.k_proj = nn.Linear(width, shared * size, bias=False)
        self.v_proj = nn.Linear(width, shared * size, bias=False)
        self.o_proj = nn.Linear(heads * size, width, bias=False)
        self.rope = Rotary(size, config["rope_theta"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, positions, width) to the same."""
        q, k, v = (f(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.rope(q), self.rope(k)
        grouped = q.shape[1] != k.shape[1]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, positions, width) to the same."""
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and feed-forward, each added to what it reads through a norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config), FeedForward(config)
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(width, eps) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, positions, width) to the same."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """Everything before the head."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList([Block(config) for _ in range(config["num_hidden_layers"])])
        self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(rows, positions) to (rows, positions, width)."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Llama(nn.Module):
    """The model of a llama config.

    Args:
        config: As in a model folder's ``config.json``; without biases and with an untied head.
        readout: Whether the head is ``mup.MuReadout``, which divides by the width multiplier.
    """

    def __init__(self, config: Config, *, readout: bool = False) -> None:
        super().__init__()
        self.model = Body(config)
        self.lm_head = _head(readout)(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids (rows, positions) to logits (rows, positions, vocabulary)."""
        return self.lm_head(self.model(tokens))


def _head(readout: bool) -> type[nn.Linear]:
    if not readout:
        return nn.Linear
    from mup import MuReadout  # only here: the plain model needs no mup

    return MuReadout


def next_token_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each next token of (rows, positions + 1), in nats."""
    return nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
