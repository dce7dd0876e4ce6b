from .checkpoint import load_checkpoint as load_checkpoint
from .checkpoint import save_checkpoint as save_checkpoint
from .config import PretrainConfig as PretrainConfig
from .pretrain import pretrain as pretrain
from .recalibration import recalibrate as recalibrate
from .run import Run as Run
