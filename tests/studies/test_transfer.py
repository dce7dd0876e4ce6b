"""A transfer from Python: rows, verdict, recipe, file."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from small_task import MLP, batches, loss, optimizer

from mufree import Refused, plan_optimizer
from mufree.studies import Transfer, lr_transfer
from mufree.studies.transfer import Row

RATES = [2.0**power for power in (-8, -6, -4, -2)]


def sweep(folder: Path, **changed: object) -> Transfer:
    arguments = {
        "base_width": 8,
        "widths": [16],
        "rates": RATES,
        "optimizer": optimizer,
        "updates": 4,
        "seeds": 2,
        "folder": folder,
    }
    return lr_transfer(MLP, batches, loss, **(arguments | changed))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Transfer:
    return sweep(tmp_path_factory.mktemp("sweep") / "s")


def test_there_is_a_row_for_every_cell(swept: Transfer) -> None:
    """Two widths, four rates, two seeds, with μP and without; each with its curve and its loss at x."""
    assert len(swept.rows) == 2 * 4 * 2 * 2
    assert all(len(row["curve"]) == 4 and row["losses"]["loss"] > 0 for row in swept.rows)


def test_at_base_width_both_parametrisations_are_one(swept: Transfer) -> None:
    """Every multiplier is 1 there; at the other width they differ."""

    def losses(kind: str, width: int) -> list[float]:
        return [r["losses"]["loss"] for r in swept.rows if r["parametrisation"] == kind and r["width"] == width]

    assert losses("mup", 8) == losses("sp", 8)
    assert losses("mup", 16) != losses("sp", 16)


def test_a_sweep_is_the_mean_over_the_seeds(swept: Transfer) -> None:
    """The base width comes first."""
    first = swept.sweeps("mup")[0]
    assert [s.width for s in swept.sweeps("mup")] == [8, 16]
    for rate in RATES:
        mine = [r["losses"]["loss"] for r in swept.rows if _at(r, 8, rate)]
        assert first.losses[rate] == statistics.fmean(mine)
        assert len(set(mine)) == 2, "the seeds differ"


def test_a_seed_that_only_some_rates_have_does_not_count(swept: Transfer) -> None:
    """A mean of three would be held against means of two."""
    extra = next(row for row in swept.rows if _at(row, 16, RATES[1])) | {"seed": 2, "losses": {"loss": 0.0}}
    assert Transfer(rows=[*swept.rows, extra], base_width=8).table() == swept.table()


def test_one_seed_that_did_not_pass_says_what_settles_it(swept: Transfer) -> None:
    """And no other verdict does: not that of several seeds, nor of the base width alone."""
    lost = [row | {"losses": {"loss": 1.0 + row["rate"]}} for row in swept.rows]
    one = [row for row in lost if row["seed"] == 0]
    judged = Transfer(rows=one, base_width=8)
    assert not judged.passed
    assert judged.verdict.startswith(judged.judgement.sentence)
    assert judged.verdict.endswith("the full grid settles it, mufree transfer without --quick, with two seeds or more.")
    for rows in (lost, [row for row in one if row["width"] == 8]):
        found = Transfer(rows=rows, base_width=8)
        assert found.verdict == found.judgement.sentence


def test_it_is_read_back_from_its_file(swept: Transfer, tmp_path: Path) -> None:
    """With the same verdict; another study's file is refused."""
    swept.save(tmp_path / "t.json")
    again = Transfer.load(tmp_path / "t.json")
    assert again.verdict == swept.verdict
    assert again.table() == swept.table()
    (tmp_path / "h.json").write_text('{"study": "horizon"}')
    with pytest.raises(Refused, match="holds a horizon study"):
        Transfer.load(tmp_path / "h.json")
    with pytest.raises(Refused, match="is no file of a finished transfer study"):
        Transfer.load(tmp_path / "none.json")


def test_a_recipe_from_python_has_the_rate_and_says_what_it_lacks(swept: Transfer) -> None:
    """Its models are not built from settings, so pretraining cannot use it."""
    inside = Transfer(rows=[_valley(row) for row in swept.rows], base_width=8)
    recipe = inside.recipe()
    assert recipe.rate == 2.0**-4
    assert recipe.regret == 0
    assert len(recipe.sweep) == 2 * 4 * 2
    with pytest.raises(Refused, match="without the settings"):
        recipe.settings_with({})


def test_no_recipe_from_the_grid_s_edge(swept: Transfer) -> None:
    """A better rate may lie beyond."""
    rows = [row | {"losses": {"loss": row["rate"]}} for row in swept.rows]
    with pytest.raises(Refused, match="add lower rates"):
        Transfer(rows=rows, base_width=8).recipe()


def test_a_seed_that_diverged_spoils_the_mean(swept: Transfer) -> None:
    """The entry says how many did, and the rate is no candidate."""
    rows = [row | ({"losses": {"loss": None}} if row["rate"] == 2.0**-2 and row["seed"] else {}) for row in swept.rows]
    entry = next(e for e in Transfer(rows=rows, base_width=8).table() if e["rate"] == 2.0**-2)
    assert (entry["loss"], entry["deviation"], entry["diverged"]) == (None, None, 1)
    assert Transfer(rows=rows, base_width=8).sweeps("mup")[0].regret(2.0**-2) == math.inf


def test_a_plan_is_trained_at_every_rate(tmp_path: Path) -> None:
    """Its own rate is replaced, so that it gives what the function gives."""
    plan = plan_optimizer(optimizer="schedule_free_adamw", lr=1.0, warmup_steps=2)
    planned = sweep(tmp_path / "p", optimizer=plan, seeds=1, parametrisations=("mup",))
    made = sweep(tmp_path / "m", seeds=1, parametrisations=("mup",))
    assert [row["curve"] for row in planned.rows] == [row["curve"] for row in made.rows]


def test_a_changed_model_batch_or_loss_is_noticed(tmp_path: Path) -> None:
    """Although a function cannot be written down."""
    small = {"rates": RATES[:1], "seeds": 1}
    sweep(tmp_path, **small)

    def other_loss(model: object, x: object, y: object) -> object:
        return 2 * loss(model, x, y)  # type: ignore[arg-type]

    def run(make: object = MLP, batch: object = batches, value: object = loss) -> None:
        lr_transfer(make, batch, value, base_width=8, widths=[16], optimizer=optimizer, updates=4, folder=tmp_path,
                    rates=RATES[:1], seeds=1)  # type: ignore[arg-type]  # fmt: skip

    run()
    for changed, field in (
        ({"make": lambda width: MLP(2 * width)}, "model"),
        ({"batch": lambda number: batches(number + 1)}, "batches"),
        ({"value": other_loss}, "loss"),
    ):
        with pytest.raises(Refused, match=f"{field}: .*contradicts"):
            run(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"widths": [8]}, "one width shows no transfer"),
        ({"rates": [0.1, -0.1]}, "rates: -0.1 is not"),
        ({"updates": 0}, "updates: 0"),
        ({"seeds": True}, "seeds: True"),
    ],
)
def test_a_grid_that_shows_nothing_is_refused(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    """Before anything is written."""
    with pytest.raises(Refused, match=message):
        sweep(tmp_path / "s", **changed)
    assert not (tmp_path / "s").exists()


def _at(row: Row, width: int, rate: float) -> bool:
    return bool(row["width"] == width and row["rate"] == rate and row["parametrisation"] == "mup")


def _valley(row: Row) -> Row:
    return row | {"losses": {"loss": 1 + (math.log2(row["rate"]) + 4) ** 2}}


def test_the_functions_are_functions_whatever_was_imported_before() -> None:
    """No module has the name of one, or importing it would take the function's place."""
    import importlib
    import pkgutil

    from mufree import studies

    for module in pkgutil.iter_modules(studies.__path__):
        importlib.import_module(f"mufree.studies.{module.name}")
    assert all(callable(getattr(studies, name)) for name in studies.__all__)
