"""μP-aware schedule-free optimizers for MLX.

The public names are listed once, in ``__init__.pyi``, and load on first use: ``import mufree`` needs no MLX.
"""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """A public name, loaded on first use."""
    try:
        return _load(name)
    except ImportError as error:
        from .errors import missing_package

        raise missing_package(error) or error from error
