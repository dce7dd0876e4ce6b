"""Settings from a YAML or JSON file, in which nothing is read twice or as another type than it looks."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

from mufree.errors import refuse

PLAIN_EXPONENT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


def read_file(path: Path) -> dict[str, Any]:
    """A mapping from a YAML or JSON file.

    Raises:
        Refused: The file cannot be read, holds no mapping, or has a key twice.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        data = (
            json.loads(text, object_pairs_hook=_unique) if path.suffix == ".json" else yaml.load(text, Loader=_loader())  # noqa: S506
        )
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        refuse("unreadable", str(path), f"cannot be read ({error}); give a YAML or JSON file")
    if not isinstance(data, dict):
        refuse("not_a_mapping", str(path), f"holds {type(data).__name__}; give a mapping of setting to value")
    return data


def _unique(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} is given twice")
        found[key] = value
    return found


def _loader() -> Any:
    """PyYAML's safe loader, for which ``1e-3`` is a number as in YAML 1.2, and a key given twice an error."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe, with plain exponents and unique keys."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            """A mapping whose keys were each given once."""
            _unique((key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", PLAIN_EXPONENT, list("-+0123456789."))
    return Loader
