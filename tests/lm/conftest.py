"""What the tests of fine-tunes start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_finetune import make_data, make_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model folder, and a data folder of which each epoch is 11 micro-batches."""
    folder = tmp_path_factory.mktemp("base")
    return make_model(folder / "model"), make_data(folder / "data")
