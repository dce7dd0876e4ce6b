"""The model card of an export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEMPLATE = """---
library_name: mlx
pipeline_tag: text-generation
tags:
- mlx
- schedule-free
- mup
---

# {name}

A {model_type} language model of {parameters:,} parameters (width {width}, {layers} layers), trained from scratch with
mufree: {optimizer} at a constant learning rate, without a schedule.

| | |
| --- | --- |
| weights | {sequence}, after {updates} updates ({tokens:,} tokens) |
| validation loss | {loss} nats a token |
| data | {data} |
| μP | base width {base_width}, width multiplier {multiplier:g} |
| learning rate | {lr:g} at the base width (settings: `mufree.json`) |

μP acted through initialisation, learning rates, eps and weight decay alone, so the config carries no multiplier.

```python
from mlx_lm import load, generate

model, tokenizer = load("path/to/this/folder")
print(generate(model, tokenizer, "The ", max_tokens=100))
```
"""


def model_card(facts: Mapping[str, Any]) -> str:
    """The card's Markdown.

    Args:
        facts: Every name of :data:`TEMPLATE`.
    """
    return TEMPLATE.format(**facts)
