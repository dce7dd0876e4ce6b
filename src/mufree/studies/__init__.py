"""Studies: grids of training runs kept on disk, and what they show: rate transfer, coordinate checks, horizons."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
