"""The README's own examples run, one after the other as a reader would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_python_examples_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one session: what one example leaves, the next one finds."""
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    session: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, str(README), "exec"), session)  # noqa: S102
