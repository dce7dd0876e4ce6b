"""Whether a learning rate transfers, in words: the gates, each with what was measured. Pure Python.

The gates are those that published sweeps satisfy: the rate of the narrowest width costs at most half a percent at any
width, the best rates lie within one step of the grid, and every minimum is inside it. The control is standard
parametrisation, which has to drift, or the task cannot tell the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..mup.verdict import Sweep, drift
from ..recipe import rate_text

REGRET = 0.005
"""What the transferred rate may cost at any width, as a share of the loss."""
DRIFT = 1
"""Steps of the grid that the best rate may move."""
CONTROL_REGRET = 0.02
CONTROL_DRIFT = 2
"""Without μP, the rate has to cost that much at the widest, or to move that many steps."""


@dataclass(frozen=True, slots=True)
class Check:
    """One gate.

    Args:
        name: A short word.
        passed: Whether it was met.
        text: What was measured, and what to do if it was not met.
    """

    name: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """All gates of a study."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every gate was met."""
        return all(check.passed for check in self.checks)

    @property
    def sentence(self) -> str:
        """The verdict in words: what failed if anything did, else what was measured."""
        shown = [check.text for check in self.checks if self.passed or not check.passed]
        return ("Passed: " if self.passed else "Did not pass: ") + "; ".join(shown) + "."


def judge_transfer(mup: Sequence[Sweep], sp: Sequence[Sweep] = ()) -> Judgement:
    """The verdict on sweeps at several widths.

    Args:
        mup: One sweep a width under μP, the base width's first.
        sp: The same without μP, or none.
    """
    edges = _edges("μP", mup)
    if len(mup) == 1:
        return Judgement((_only_base(mup[0]) if edges is None else edges,))
    checks = [edges or Check("interior", True, "every minimum lies inside the grid")]
    checks += [_regret(mup), _drift(mup)]
    if sp:
        checks += [_edges("SP", sp) or _control(sp), _no_worse(mup[-1], sp[-1])]
    return Judgement(tuple(checks))


def _edges(name: str, sweeps: Sequence[Sweep]) -> Check | None:
    """The gate on minima inside the grid, if it was not met."""
    texts = []
    for sweep in sweeps:
        if sweep.best is None:
            texts.append(f"{name} diverged at every rate at width {sweep.width}: add lower rates")
        elif sweep.edge is not None:
            beyond = "lower" if sweep.edge == "lowest" else "higher"
            texts.append(
                f"the best rate of {name} at width {sweep.width} is {rate_text(sweep.best)}, the {sweep.edge} of the "
                f"grid: add {beyond} rates"
            )
    return Check("interior", False, "; ".join(texts)) if texts else None


def _only_base(sweep: Sweep) -> Check:
    best = rate_text(sweep.best or math.nan)
    return Check("interior", True, f"best rate {best} at width {sweep.width}; transfer was not checked")


def _regret(mup: Sequence[Sweep]) -> Check:
    base = mup[0]
    regrets = [(sweep.regret(base.best), sweep.width) for sweep in mup[1:]]
    worst, width = max(regrets)
    rate = "none" if base.best is None else rate_text(base.best)
    return Check(
        "regret",
        worst <= REGRET,
        f"the rate of width {base.width}, {rate}, costs {_percent(worst)} at width {width}, where it costs most "
        f"(allowed {_percent(REGRET)})",
    )


def _drift(mup: Sequence[Sweep]) -> Check:
    steps = drift(mup)
    found = ", ".join("none" if s.best is None else rate_text(s.best) for s in mup)
    return Check("drift", steps <= DRIFT, f"best rates {found} lie {steps:g} steps apart (allowed {DRIFT})")


def _control(sp: Sequence[Sweep]) -> Check:
    steps, regret = drift(sp), sp[-1].regret(sp[0].best)
    passed = steps >= CONTROL_DRIFT or regret >= CONTROL_REGRET
    said = f"without μP the best rate moves {steps:g} steps and costs {_percent(regret)} at width {sp[-1].width}"
    return Check("control", passed, said if passed else f"{said}: this task does not tell the two apart, go wider")


def _no_worse(mup: Sweep, sp: Sweep) -> Check:
    return Check(
        "best",
        mup.best_loss <= sp.best_loss,
        f"best loss at width {mup.width}: μP {mup.best_loss:.4f}, SP {sp.best_loss:.4f}",
    )


def _percent(share: float) -> str:
    return "everything (it diverges)" if math.isinf(share) else f"{100 * share:.2g} %"
