"""Plots of studies, made from kept rows alone. They are legible in grey: every curve has a marker and a dash of its
own, μP is filled and solid, SP hollow and dashed. matplotlib is needed only here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import refuse
from ..mup.verdict import Sweep

if TYPE_CHECKING:
    from .coordinates import CoordCheck
    from .horizon import Horizon
    from .transfer import Transfer

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DPI = 160
_BESIDE: Mapping[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
_TITLES = {"mup": "μP", "sp": "SP: MLX's initialisation, one rate"}


def check_plotting() -> None:
    """Refuse to plot without matplotlib, before anything is trained.

    Raises:
        Refused: If it is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        refuse("missing", "plot", "matplotlib is not installed; pip install 'mufree[plot]', or leave the plot out")


def plot_transfer(transfer: Transfer, path: Path) -> Path:
    """Loss at ``x`` against the rate, one curve a width: μP left, SP right, the same axes."""
    found = {kind: transfer.sweeps(kind) for kind in ("sp", "mup")}
    kinds = [kind for kind, sweeps in found.items() if sweeps]
    figure, panels = _figure(len(kinds))
    deviations = {(e["parametrisation"], e["width"], e["rate"]): e["deviation"] for e in transfer.table()}
    for panel, kind in zip(panels, kinds, strict=True):
        for number, sweep in enumerate(found[kind]):
            _curve(panel, sweep, kind, number, len(found[kind]), deviations)
        panel.set_title({**_TITLES, **transfer.context.get("titles", {})}[kind])
        panel.set_xlabel("learning rate at the base width, log₂")
    panels[0].set_ylabel("loss at x, nats a token")
    panels[-1].legend(title="width\n(ring: best rate)", fontsize=8, title_fontsize=8, **_BESIDE)
    for panel in panels:
        panel.set_ylim(*_limits([sweep for kind in kinds for sweep in found[kind]]))
    return _write(figure, path)


def _curve(
    panel: Any, sweep: Sweep, kind: str, number: int, count: int, deviations: Mapping[tuple[str, int, float], Any]
) -> None:
    rates = [rate for rate in sweep.rates if sweep.losses[rate] is not None]
    losses = [sweep.losses[rate] for rate in rates]
    spreads = [deviations[kind, sweep.width, rate] or 0.0 for rate in rates]
    grey = _grey(number, count)
    panel.errorbar(
        [math.log2(rate) for rate in rates],
        losses,
        yerr=spreads if any(spreads) else None,
        **_style(kind, number),
        color=grey,
        markerfacecolor=grey if kind == "mup" else "white",
        capsize=2,
        label=str(sweep.width),
    )
    if sweep.best is not None:
        panel.plot(
            [math.log2(sweep.best)], [sweep.best_loss], "o", markersize=12, markerfacecolor="none", color=grey, zorder=3
        )


def plot_coordinates(check: CoordCheck, path: Path) -> Path:
    """Every module's statistic against width after the last update, at ``y`` and at ``x``, on logarithmic axes."""
    figure, panels = _figure(len(check.points))
    modules = check.modules
    for panel, at in zip(panels, check.points, strict=True):
        for number, module in enumerate(modules):
            values = check.means(module, check.updates, at)
            if values:
                kind = "mup" if check.parametrisation == "mup" else "sp"
                grey = _grey(number, len(modules))
                panel.plot(
                    list(values),
                    list(values.values()),
                    **_style(kind, number),
                    color=grey,
                    markerfacecolor=grey if kind == "mup" else "white",
                    label=module,
                )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xlabel("width")
        panel.set_title(f"{_TITLES.get(check.parametrisation, check.parametrisation)}, at {at}")
    panels[0].set_ylabel(f"mean |entry| after {check.updates} updates")
    low, high = (f([p.get_ylim()[end] for p in panels]) for f, end in ((min, 0), (max, 1)))
    for panel in panels:
        panel.set_ylim(low, high)
    panels[-1].legend(fontsize=7, **_BESIDE)
    return _write(figure, path)


def plot_horizon(horizon: Horizon, path: Path) -> Path:
    """Loss against the horizon: one schedule-free run at ``x``, and a tuned cosine run for each horizon."""
    figure, panels = _figure(1)
    panel = panels[0]
    for number, (name, label, kind) in enumerate(
        (
            ("schedule_free", "schedule-free at x, one run", "mup"),
            ("cosine", "AdamW + cosine, one tuned run a horizon", "sp"),
        )
    ):
        points = horizon.best(name)
        grey = _grey(number, 2)
        panel.errorbar(
            list(points),
            [point["loss"] for point in points.values()],
            yerr=[point["deviation"] or 0.0 for point in points.values()],
            **_style(kind, number),
            color=grey,
            markerfacecolor=grey if kind == "mup" else "white",
            capsize=3,
            label=label,
        )
    panel.set_xlabel("horizon, updates")
    panel.set_ylabel(f"{horizon.loss.replace('valid_', 'validation ')}, nats a token")
    panel.set_xticks(horizon.horizons)
    panel.legend(fontsize=9)
    return _write(figure, path)


def _figure(count: int) -> tuple[Any, Sequence[Any]]:
    check_plotting()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * count + 0.6, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    for panel in panels:
        panel.grid(visible=True, color="0.9")
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(panels)


def _style(kind: str, number: int) -> dict[str, Any]:
    return {
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": "-" if kind == "mup" else "--",
        "linewidth": 1.3,
        "markersize": 5.5,
    }


def _grey(number: int, count: int) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](0.85 * number / max(1, count - 1))


def _limits(sweeps: Sequence[Sweep]) -> tuple[float, float]:
    """From below the best loss to as far above as the narrowest width's curve is high, so that minima are seen."""
    finite = [loss for sweep in sweeps for loss in sweep.losses.values() if loss is not None]
    low, worst_best = min(finite), max(sweep.best_loss for sweep in sweeps if sweep.best is not None)
    room = max(worst_best - low, 0.1)
    return low - 0.1 * room, min(max(finite) + 0.1 * room, worst_best + 2 * room)


def _write(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.savefig(path, dpi=_DPI)
    except ValueError as error:
        refuse("unknown", "plot", f"{path}: {error}")
    return path
