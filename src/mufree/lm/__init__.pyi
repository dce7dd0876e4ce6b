from .building import base_shapes as base_shapes
from .building import build as build
from .configs import at_width as at_width
from .export import export as export
from .tuning.finetuning import finetune as finetune
from .tuning.settings import FinetuneConfig as FinetuneConfig
