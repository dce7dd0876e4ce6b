"""The studies whose data is kept beside this file: run one (hours, resumable), or draw the plots again.

    python reference/studies.py transfer runs/transfer      # an hour or two on two cores
    python reference/studies.py coord-check runs/coord      # some minutes
    python reference/studies.py horizon runs/horizon        # half an hour
    python reference/studies.py lora-transfer runs/lora-transfer    # half an hour, one core
    python reference/studies.py lora-horizon runs/lora-horizon      # a quarter of an hour, one core
    python reference/studies.py plots FOLDER                # from the kept data alone

Several processes may be started on one folder at once. Each study ends by writing ``reference/data/<name>.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mufree.cli.blas import prepare_machine
from mufree.cli.coord_check import PRESET
from mufree.cli.transfer import FULL
from mufree.training.config import PretrainConfig

DATA = Path(__file__).parent / "data"
WIDTHS = (64, 128, 256, 512)
RATES = {
    "mup": {64: range(-10, -2), 128: range(-8, -3), 256: range(-8, -4), 512: range(-8, -4)},
    "sp": {64: range(-10, -2), 128: range(-9, -4), 256: range(-10, -5), 512: (-10, -9, -8, -6)},
}
"""Powers of two by width: all where cells are cheap, elsewhere those around the minimum and, for SP, the base width's
best, which is what it regrets."""
SEEDS = 2
WIDER_SEEDS, WIDER_RATE = 3, 2.0**-6
HORIZON_RATES = [2.0**power for power in range(-9, -3)]
HORIZON_UPDATES = 800
BASE_UPDATES = 600
"""Of a fine-tune's base model."""
FINETUNE = {"batch_size": 8, "weight_decay": 0.0, "warmup": 10, "beta2": 0.999}
LORA_WIDTHS = (64, 256)
LORA_TRANSFER_UPDATES = 100
LORA_TRANSFER_RATES = [2.0**power for power in range(-11, -4)]
LORA_TITLES = {"mup": "LoRA scaled: A at rate/m, B at the rate", "sp": "LoRA, one rate for A and B"}
LORA_HORIZONS = (100, 200, 400)
LORA_HORIZON_RATES = [2.0**power for power in range(-11, -5)]


def transfer(folder: Path) -> None:
    """Learning-rate transfer from 64 to 512, and a third seed at the transferred rate."""
    from mufree.studies.cells import PARAMETRISATIONS, Cell, grid
    from mufree.studies.language import language_task, recipe_context
    from mufree.studies.runner import run_cells
    from mufree.studies.store import Store
    from mufree.studies.task import train_cell
    from mufree.studies.transfer import LOSS, STUDY, Transfer
    from mufree.studies.wider import judge_wider

    config = PretrainConfig(batch_size=FULL["batch_size"])
    task, prepared = language_task(config, WIDTHS)
    cells = [
        Cell(width=width, rate=2.0**power, seed=seed, updates=FULL["updates"], parametrisation=kind)
        for seed in range(SEEDS)
        for width in WIDTHS
        for kind in PARAMETRISATIONS
        for power in RATES[kind][width]
    ]
    cells += grid(widths=WIDTHS, rates=[WIDER_RATE], seeds=[WIDER_SEEDS - 1], updates=FULL["updates"])
    store = Store(folder, STUDY, task.settings)
    rows = run_cells(store, cells, lambda cell: train_cell(task, cell), _watcher(LOSS))
    found = Transfer(rows=rows, base_width=config.base_width, context=recipe_context(config, task, prepared))
    print(found.verdict)
    print(judge_wider(rows, rate=WIDER_RATE, after=config.warmup).sentence)
    found.save(DATA / "transfer.json")


def horizon(folder: Path) -> None:
    """One schedule-free run against a cosine tuned for each horizon, width 64, three seeds."""
    from mufree.studies.horizon import LOSS, horizons_of, run_horizon
    from mufree.studies.language import language_task

    task, _ = language_task(PretrainConfig(batch_size=16), [64], measured=horizons_of(HORIZON_UPDATES)[:-1])
    found = run_horizon(
        task,
        width=64,
        rates=HORIZON_RATES,
        updates=HORIZON_UPDATES,
        seeds=3,
        folder=folder,
        watcher=_watcher(LOSS),
    )
    print(found.verdict)
    found.save(DATA / "horizon.json")


def lora_transfer(folder: Path) -> None:
    """Whether the rate of a LoRA fine-tune, tuned on a narrow base, is that of a base four times as wide."""
    from finetune import finetune_task
    from mufree.studies.transfer import LOSS
    from mufree.studies.transfer_runs import run_transfer

    base = PretrainConfig(updates=BASE_UPDATES)
    task = finetune_task(PretrainConfig(**FINETUNE), base, LORA_WIDTHS, _bases(folder))
    found = run_transfer(
        task,
        base_width=LORA_WIDTHS[0],
        widths=LORA_WIDTHS,
        rates=LORA_TRANSFER_RATES,
        updates=LORA_TRANSFER_UPDATES,
        seeds=SEEDS,
        folder=folder,
        context={"titles": LORA_TITLES, **task.settings},
        watcher=_watcher(LOSS),
    )
    print(found.verdict)
    found.save(DATA / "lora-transfer.json")


def lora_horizon(folder: Path) -> None:
    """One schedule-free LoRA fine-tune against a cosine tuned for each length, width 64, three seeds."""
    from finetune import finetune_task
    from mufree.studies.horizon import LOSS, run_horizon

    base = PretrainConfig(updates=BASE_UPDATES, width=LORA_WIDTHS[0])
    task = finetune_task(PretrainConfig(**FINETUNE), base, LORA_WIDTHS[:1], _bases(folder), measured=LORA_HORIZONS[:-1])
    found = run_horizon(
        task,
        width=LORA_WIDTHS[0],
        rates=LORA_HORIZON_RATES,
        updates=LORA_HORIZONS[-1],
        horizons=LORA_HORIZONS,
        seeds=3,
        folder=folder,
        watcher=_watcher(LOSS),
    )
    print(found.verdict)
    found.save(DATA / "lora-horizon.json")


def _bases(folder: Path) -> Path:
    """Where the base models of fine-tunes are kept: beside the studies, which share them."""
    return folder.parent / "lora-bases"


def coord_check(folder: Path) -> None:
    """The coordinate check of the command's own preset, with its control and both planted faults."""
    from dataclasses import replace

    from rich.console import Console

    from mufree.cli.watch import SecondsWatcher
    from mufree.studies.coordinate_runs import hidden_rate_not_divided, run_coord_check
    from mufree.studies.language import language_task

    own = ("widths", "seeds", "updates")
    config = PretrainConfig(**{name: value for name, value in PRESET.items() if name not in own})
    grid = {name: PRESET[name] for name in own}
    watcher = SecondsWatcher(Console())
    task, _ = language_task(config, grid["widths"])
    planted = replace(task, adjust=hidden_rate_not_divided, settings={**task.settings, "scales": "hidden-rate"})
    for name, one in (("mup", task), ("sp", task), ("hidden-rate", planted), ("attention", growing_heads(config))):
        found = run_coord_check(
            one,
            **(grid if name == "mup" else {**grid, "seeds": 1}),
            rate=config.lr,
            folder=folder / name,
            parametrisation="sp" if name == "sp" else "mup",
            name=name,
            watcher=watcher,
        )
        print(name, found.verdict)
        found.save(DATA / f"coord-check-{name}.json")


def growing_heads(config: PretrainConfig, *, corrected: bool = False) -> Any:
    """A task whose models keep four heads that grow, in a code that divides by the root of their size.

    Args:
        config: The settings.
        corrected: Whether the queries carry what is missing of μP's 1/d; without it this is the planted fault.
    """
    from dataclasses import replace

    from mufree.lm.building import build
    from mufree.lm.configs import at_width
    from mufree.mup import make_base_shapes
    from mufree.studies.language import language_task

    task, prepared = language_task(config, [config.base_width])

    def make(width: int) -> Any:
        heads = prepared.model_config["num_attention_heads"]
        grown = at_width(prepared.model_config, width)
        return build({**grown, "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": width // heads})

    options = {**task.parametrize, **({"base_head_dim": config.head_dim} if corrected else {})}
    return replace(
        task,
        make=make,
        shapes=make_base_shapes(make, base_width=config.base_width),
        parametrize=options,
        settings={**task.settings, "heads": "grow, corrected" if corrected else "grow"},
    )


def plots(folder: Path) -> None:
    """Draw every study, and say its verdict, from the kept data alone."""
    from mufree.studies.coordinates import CoordCheck
    from mufree.studies.horizon import Horizon
    from mufree.studies.transfer import Transfer
    from mufree.studies.wider import judge_wider

    kinds = {
        "transfer": Transfer,
        "horizon": Horizon,
        "coord-check": CoordCheck,
        "lora-transfer": Transfer,
        "lora-horizon": Horizon,
    }
    for path in sorted(DATA.glob("*.json")):
        kind = next((found for name, found in kinds.items() if path.stem.startswith(name)), None)
        if kind is None:
            continue
        study = kind.load(path)
        print(f"{path.stem}: {study.verdict}")
        if isinstance(study, Transfer):
            print(study.costs)
        if path.stem == "transfer":
            print(judge_wider(study.rows, rate=WIDER_RATE, after=PretrainConfig().warmup).sentence)
        print(study.plot(folder / f"{path.stem}.png"))


def _watcher(loss: str) -> Any:
    from rich.console import Console

    from mufree.studies.console import ConsoleWatcher

    return ConsoleWatcher(Console(), lambda row: row["losses"][loss])


STUDIES = {
    "transfer": transfer,
    "coord-check": coord_check,
    "horizon": horizon,
    "lora-transfer": lora_transfer,
    "lora-horizon": lora_horizon,
    "plots": plots,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    DATA.mkdir(exist_ok=True)
    prepare_machine()
    STUDIES[options.study](options.folder)


if __name__ == "__main__":
    main()
