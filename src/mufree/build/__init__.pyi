from .describe import describe as describe
from .grouped import Grouped as Grouped
from .grouped import Member as Member
from .rates import build_lr_schedule as build_lr_schedule
from .standard import build_optimizer as build_optimizer
