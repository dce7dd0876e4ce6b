from .errors import CheckpointError as CheckpointError
from .errors import Reason as Reason
from .errors import Refused as Refused
from .errors import ShapeMismatch as ShapeMismatch
from .schedule_free import AdamWScheduleFree as AdamWScheduleFree
from .schedule_free import RAdamScheduleFree as RAdamScheduleFree
from .schedule_free import SGDScheduleFree as SGDScheduleFree
from .schedule_free import averaged as averaged
