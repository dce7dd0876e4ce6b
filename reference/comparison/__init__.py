"""Problems on which both sides are run, one a module with ``rows(scale, tick) -> Iterator[Row]``.

This module puts the tests' own problems within reach: they are the same ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
for folder in (TESTS, TESTS / "mup", TESTS / "parity"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
