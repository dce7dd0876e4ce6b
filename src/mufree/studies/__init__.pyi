from .coordinate_runs import coord_check as coord_check
from .coordinates import CoordCheck as CoordCheck
from .transfer import Transfer as Transfer
from .transfer_runs import lr_transfer as lr_transfer
