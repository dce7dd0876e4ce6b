"""Settings from a YAML or JSON file, in which nothing is read twice or as another type than it looks."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

from mufree.errors import refuse
from mufree.files import safe_loader

PLAIN_EXPONENT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


def read_file(path: Path) -> dict[str, Any]:
    """A mapping from a YAML or JSON file; an empty YAML file is an empty one.

    Raises:
        Refused: The file cannot be read, holds no mapping, or has a key twice.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        data = (
            json.loads(text, object_pairs_hook=_unique) if path.suffix == ".json" else yaml.load(text, Loader=_loader())  # noqa: S506
        )
    except OSError as error:
        refuse("unreadable", str(path), f"cannot be read ({error.strerror}); give a YAML or JSON file")
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        refuse("unreadable", str(path), f"is not {kind} ({error}); give a mapping of setting to value")
    if data is None and path.suffix != ".json":
        return {}
    if not isinstance(data, dict):
        refuse("not_a_mapping", str(path), f"holds a {type(data).__name__}; write one setting a line, as in 'lr: 0.01'")
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

    class Loader(safe_loader()):  # type: ignore[misc]
        """Safe, with plain exponents and unique keys."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            """A mapping whose keys were each given once."""
            _unique((key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", PLAIN_EXPONENT, list("-+0123456789."))
    return Loader
