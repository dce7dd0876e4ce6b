from .errors import CheckpointError as CheckpointError
from .errors import Reason as Reason
from .errors import Refused as Refused
from .errors import ShapeMismatch as ShapeMismatch
