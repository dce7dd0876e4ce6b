"""Training: configuration, data, the compiled step, the loop, checkpoints, and the pretraining run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
