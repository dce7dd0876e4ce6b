from .adamw import AdamWScheduleFree as AdamWScheduleFree
from .base import ScheduleFree as ScheduleFree
from .modes import averaged as averaged
from .radam import RAdamScheduleFree as RAdamScheduleFree
from .sgd import SGDScheduleFree as SGDScheduleFree
