"""μP: which parameter scales how with width. Names load on first use; shapes, kinds and rules need no MLX."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
