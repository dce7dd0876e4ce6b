"""Schedule-free optimizers: the average of the base iterate takes the place of a learning-rate schedule."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
