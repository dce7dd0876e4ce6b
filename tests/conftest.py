"""Fixtures shared by every test: fixed seeds, and no way out to a hub."""

from __future__ import annotations

import os
import random
import signal

import pytest

from mufree.cli.blas import prepare_machine

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# A shell's background job ignores Ctrl-C, and so would every command that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# As the command line does, and before anything imports MLX: in-process runs and started commands agree bit for bit.
prepare_machine()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test starts from the same random state."""
    random.seed(0)
    try:
        import mlx.core as mx
    except ImportError:
        return
    mx.random.seed(0)
