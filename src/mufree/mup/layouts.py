"""What the axes of known parameters mean and how their initialiser draws them, as data.

Axes, in the order in which the layer stores them: ``i`` fan-in, ``j`` a second fan-in, ``o`` fan-out, ``k`` kernel
(any number of axes, finite), ``e`` a stack of independent matrices of fixed number (experts), ``h`` such a stack whose
number may grow with width (heads). A start names the law and the fan over which it shrinks: ``uniform`` is
U(±1/√fan), ``normal`` N(0, 1/fan), ``constant`` any value that does not shrink with width.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

Law = Literal["uniform", "normal", "constant", "unknown"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes and the initialiser of one kind of parameter.

    Args:
        owner: Pattern of ``root package:class name``.
        name: Pattern of the attribute.
        axes: Letters as above.
        law: The initialiser's law.
        fan: The axes whose product the law shrinks with.
        of: The sibling parameter whose axes those are; its own if empty.
        keeps_start: The initialiser is right at every width whatever the table says (LoRA's A beside a B of zeros).
    """

    owner: str
    name: str
    axes: str
    law: Law = "constant"
    fan: str = ""
    of: str = ""
    keeps_start: bool = False


_CONV = "mlx:Conv*"
LAYOUTS: tuple[Layout, ...] = (
    Layout("mlx:Linear", "weight", "oi", "uniform", "i"),
    Layout("mlx:Linear", "bias", "o", "uniform", "i", of="weight"),
    Layout("mlx:Bilinear", "weight", "oji", "uniform", "i"),
    Layout("mlx:Bilinear", "bias", "o", "uniform", "i", of="weight"),
    Layout("mlx:Embedding", "weight", "io", "normal", "o"),
    Layout(_CONV, "weight", "oki", "uniform", "ki"),
    Layout(_CONV, "bias", "o"),
    Layout("mlx:RNN", "W?h", "oi", "uniform", "o"),
    Layout("mlx:RNN", "bias", "o", "uniform", "o"),
    Layout("mlx:GRU", "W?", "oi", "uniform", "i", of="Wh"),
    Layout("mlx:GRU", "b", "o", "uniform", "i", of="Wh"),
    Layout("mlx:GRU", "bhn", "o", "uniform", "i", of="Wh"),
    Layout("mlx:LSTM", "W?", "oi", "uniform", "i", of="Wh"),
    Layout("mlx:LSTM", "bias", "o", "uniform", "i", of="Wh"),
    Layout("mlx:Quantized*", "bias", "o", "unknown"),
    Layout("mlx:*Linear", "weight", "oi", "uniform", "i"),
    Layout("mlx:*Linear", "bias", "o", "uniform", "i", of="weight"),
    Layout("mlx_lm:SwitchLinear", "weight", "eoi", "uniform", "i"),
    Layout("mlx_lm:SwitchLinear", "bias", "eo"),
    Layout("mlx_lm:MultiLinear", "weight", "hoi", "uniform", "i"),
    Layout("mlx_lm:LoRASwitchLinear", "lora_a", "eoi", "uniform", "i", keeps_start=True),
    Layout("mlx_lm:LoRASwitchLinear", "lora_b", "eoi"),
    Layout("mlx_lm:[LD]oRA*", "lora_a", "io", "uniform", "i", keeps_start=True),
    Layout("mlx_lm:[LD]oRA*", "lora_b", "io"),
    Layout("mlx_lm:DoRA*", "m", "o", keeps_start=True),
    Layout("mlx_lm:*Gate", "weight", "oi"),
    Layout("mlx_lm:*Router", "weight", "oi"),
    Layout("mlx_lm:HyperConnection", "fn", "oi"),
    Layout("mlx_lm:LoopGateProjection", "weight", "oi"),
    Layout("mlx_lm:Model", "lm_head", "oi"),
    # Gains of one head size a head: vectors, though stored as matrices.
    Layout("mlx_lm:LayerNorm2D", "weight", "oo"),
    Layout("mlx_lm:Attention", "[qk]_weight", "oo"),
    Layout("mlx_lm:LayerNormPerHead", "*", "oo"),
    Layout("mlx_lm:Rwkv7TimeMixing", "[kr]_[ka]", "oo"),
    Layout("mlx_lm:RGLRU", "*_gate_weight", "hoi"),
    Layout("mlx_lm:RGLRU", "*_gate_bias", "oo"),
    Layout("mlx_lm:Attention", "conv_[kv]", "..o.."),
    Layout("mlx_lm:Conv1d", "weight", "oki"),
    Layout("mlx_lm:*Mamba*", "A_log", "o."),
)

# Rules for these are disputed or untested at width: selection in state-space models, low-rank attention.
EXPERIMENTAL: dict[str, tuple[str, ...]] = {
    "SSM": ("*.A_log", "*.dt_bias", "*.mixer.D", "*.mamba.D", "*.x_proj.*", "*.dt_proj.*", "*.rg_lru.*"),
    "MLA": ("*.q_a_proj.*", "*.kv_a_proj*", "*.q_b_proj.*", "*.kv_b_proj.*", "*.embed_q.*", "*.unembed_out.*"),
}


@lru_cache(maxsize=4096)
def layout_of(classes: tuple[str, ...], name: str, rank: int) -> Layout | None:
    """The first row that fits, looking at the nearest class first; a vector of an unknown module scales as one."""
    for owner in classes:
        for layout in LAYOUTS:
            if fnmatchcase(owner, layout.owner) and fnmatchcase(name, layout.name) and fits(layout.axes, rank):
                return layout
    return Layout("*", name, "o", "unknown") if rank == 1 and classes else None


def experimental(path: str) -> str:
    """Which experimental part a parameter belongs to, or nothing."""
    for word, patterns in EXPERIMENTAL.items():
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            return f"experimental: {word}"
    return ""


def fits(axes: str, rank: int) -> bool:
    """Whether letters can describe that many axes."""
    return rank == len(axes) or ("k" in axes and rank >= len(axes) - 1)


def spread(axes: str, rank: int) -> str:
    """One letter an axis: the kernel letter repeated as often as needed."""
    return axes.replace("k", "k" * (rank - len(axes) + 1))
