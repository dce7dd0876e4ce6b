"""Build: an :class:`~mufree.plan.OptimizerPlan` becomes an optimizer. Names load on first use; rates need no MLX."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
