"""The PyTorch side lives in ``reference``, beside the recordings' script."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "reference"))
