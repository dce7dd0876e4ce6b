"""Record what transformers' own Trainer does to a small model, end to end.

Run: ``python reference/trainer.py``. Writes ``tests/data/standard_trainer.npz``: the data, the first weights, and for
accumulation 1 and 2, with and without clipping, the training arguments and the weights after 40 updates.
"""

from __future__ import annotations

import itertools
import tempfile
from typing import Any

import numpy as np
import torch
from transformers import Trainer, TrainingArguments

from recording import Recording, command

NAME = "standard_trainer"
PACKAGES = ("torch", "transformers", "accelerate", "numpy")
TOLERANCE = 1e-5  # 40 updates in float32
UPDATES, BATCH, FEATURES, WIDTH, TARGETS, SEED = 40, 4, 8, 16, 3, 11
KEPT = ("optim", "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2")
KEPT += ("adam_epsilon", "max_grad_norm", "max_steps", "gradient_accumulation_steps")


class Model(torch.nn.Module):
    """Biases, a LayerNorm by a name that says nothing, and one that is named as a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(FEATURES, WIDTH)
        self.ln = torch.nn.LayerNorm(WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.final_norm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = torch.nn.Linear(WIDTH, TARGETS, bias=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The mean squared error."""
        h = torch.tanh(self.ln(self.inner(x)))
        out = self.head(self.final_norm(torch.tanh(self.hidden(h))))
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


class InOrder(Trainer):
    """Takes the examples in their order."""

    def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def data() -> tuple[np.ndarray, np.ndarray]:
    """Features, and targets large enough for gradients above the clip."""
    random = np.random.RandomState(SEED)
    count = 2 * UPDATES * BATCH
    x = random.normal(size=(count, FEATURES)).astype(np.float32)
    noise = random.normal(size=(count, TARGETS))
    return x, (4 * np.sin(x[:, :TARGETS] * 2) + noise).astype(np.float32)


def trained(x: np.ndarray, y: np.ndarray, accumulation: int, clip: float) -> tuple[dict, dict, dict]:
    """First weights, last weights and the arguments of one run."""
    torch.manual_seed(SEED)
    model = Model()
    first = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=UPDATES,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=accumulation,
            learning_rate=5e-3,
            lr_scheduler_type="linear",
            warmup_steps=0.25,
            weight_decay=0.1,
            max_grad_norm=clip,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        )
        examples = [{"x": a, "labels": b} for a, b in zip(torch.tensor(x), torch.tensor(y), strict=True)]
        InOrder(model=model, args=arguments, train_dataset=examples).train()
    last = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    return first, last, {key: value for key, value in arguments.to_dict().items() if key in KEPT}


def record() -> Recording:
    """The data and the four runs."""
    x, y = data()
    arrays, runs = {"x": x, "y": y}, []
    for index, (accumulation, clip) in enumerate(itertools.product((1, 2), (1.0, 0.0))):
        first, last, arguments = trained(x, y, accumulation, clip)
        runs.append(arguments)
        arrays |= {f"first/{name}": value for name, value in first.items()}
        arrays |= {f"{index}/{name}": value for name, value in last.items()}
    return arrays, {"runs": runs, "batch": BATCH}


if __name__ == "__main__":
    torch.set_num_threads(1)
    command(__doc__, NAME, record, PACKAGES)
