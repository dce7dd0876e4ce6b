"""Fixtures shared by every test: fixed seeds, and no way out to a hub."""

from __future__ import annotations

import os
import random

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test starts from the same random state."""
    random.seed(0)
    try:
        import mlx.core as mx
    except ImportError:
        return
    mx.random.seed(0)
