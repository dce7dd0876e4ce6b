"""μP-aware schedule-free optimizers for MLX.

The public names are listed once, in ``__init__.pyi``, and load on first use: ``import mufree`` needs no MLX.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
