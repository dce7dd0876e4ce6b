from .building import base_shapes as base_shapes
from .building import build as build
from .configs import at_width as at_width
from .export import export as export
from .fusing import export_adapters as export_adapters
from .lora_scales import lora_scales as lora_scales
from .memory_plan import MemoryPlan as MemoryPlan
from .memory_plan import memory_plan as memory_plan
