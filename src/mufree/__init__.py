"""μP-aware schedule-free optimizers for MLX.

Names load on first use: ``import mufree`` needs no MLX. ``help(mufree.plan_optimizer)`` and the like say more.

μP for a model:
    make_base_shapes        which axes are widths, from a base model and a second width
    BaseShapes              what it returns; microsoft/mup's ``.bsh`` files
    parametrize             a fresh model's start, in place, and its scales
    mup_scales              the scales alone
    Scales                  a :class:`Scale` for every parameter; ``print(scales.table())``
    Scale                   one parameter's multipliers
    MuReadout               a readout with its 1/m in the forward pass
    MuSharedReadout         the same through an embedding's weight
    attention_scale         the factor on q·k
    param_groups            parameters split by rate, eps and decay
    ParamGroup              one of them
    MuAdam                  MLX's Adam-like optimizers with μP's rates
    MuAdamW                 the same on AdamW
    MuSGD                   the same for SGD
    MuAdamWScheduleFree     the same for a schedule-free optimizer

Schedule-free optimizers:
    AdamWScheduleFree       with weight decay and warmup
    SGDScheduleFree         gradient descent
    RAdamScheduleFree       without warmup
    averaged                a model that holds the average ``x`` for a ``with`` block
    recalibrate             BatchNorm's statistics at ``x``

Plan, refuse, build:
    plan_optimizer          settings in transformers' terms, or a refusal
    OptimizerPlan           what was decided
    build_optimizer         the MLX optimizer of a plan
    build_lr_schedule       its rate
    resolve_optimizer_name  the class behind a name

Errors:
    Refused                 an input that is not accepted, with every reason
    Reason                  one of them
    ShapeMismatch           parameter trees that do not belong together
    CheckpointError         a saved state that cannot be used
    NonFiniteLoss           a run that blew up

Tools:
    lm                      mlx-lm models at any width, fine-tunes, exports
    training                pretraining and checkpoints
    studies                 rate transfer and coordinate checks
    Recipe                  a tuned rate with what it depends on
"""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """A public name, loaded on first use."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(__name__)
        except PackageNotFoundError:
            return "not installed"
    try:
        return _load(name)
    except ImportError as error:
        from .errors import missing_package

        raise missing_package(error) or error from error
