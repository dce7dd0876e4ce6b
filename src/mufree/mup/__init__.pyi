from .groups import ParamGroup as ParamGroup
from .groups import param_groups as param_groups
from .init import parametrize as parametrize
from .scales import Scale as Scale
from .scales import Scales as Scales
from .scales import mup_scales as mup_scales
from .shapes import BaseShapes as BaseShapes
from .shapes import make_base_shapes as make_base_shapes
