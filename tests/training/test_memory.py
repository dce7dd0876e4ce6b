"""What a run needs at the very least."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlx.utils import tree_flatten

from mufree import Refused, lm
from mufree.lm.configs import ARCHITECTURES, new_config
from mufree.training.memory import parameters
from mufree.training.prepare import prepare
from training_settings import tiny


@pytest.mark.parametrize("model_type", ARCHITECTURES)
@pytest.mark.parametrize("layers", [1, 5])
def test_parameters_are_counted_without_the_model(model_type: str, layers: int) -> None:
    """Exactly those that it has."""
    config = new_config(model_type, width=64, layers=layers, head_dim=16, vocab_size=50, max_length=128)
    assert parameters(config) == sum(array.size for _, array in tree_flatten(lm.build(config).parameters()))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"width": 2**20, "base_width": 16}, r"width: the weights and their optimizer state take [\d,.]+ GB"),
        ({"layers": 2**31 - 1}, "give a smaller width or fewer layers"),
        ({"batch_size": 2**31 - 1}, "batch_size: the logits of a micro-batch take"),
    ],
)
def test_what_cannot_fit_is_refused_before_it_is_built(tmp_path: Path, changes: dict[str, int], says: str) -> None:
    """At once, with what it needs and what there is."""
    with pytest.raises(Refused, match=says):
        prepare(tiny(tmp_path / "run", **changes))
