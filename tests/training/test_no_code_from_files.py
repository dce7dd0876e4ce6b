"""Files are data: nothing that is read is run, and no name in a file leads out of its folder."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mufree
from mufree import CheckpointError, Refused
from mufree.cli.options import read_yaml
from mufree.training import PretrainConfig
from mufree.training.checkpoint import verify
from mufree.training.manifest import plain_name, sealed
from mufree.training.prepare import prepare
from mufree.training.tokenised import read_tokenised
from training_settings import tiny

PACKAGE = Path(mufree.__file__).parent
RUNNING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "runpy", "code"}
OURS = ("_loader()", "safe_loader()")
"""Subclasses of the safe loader, tested below."""

LOADERS = {"yaml.Loader", "yaml.FullLoader", "yaml.UnsafeLoader"}
CALLED = {"eval", "exec", "compile", "__import__"}


def faults(source: str) -> list[str]:
    """Each thing in Python source that can run what a file says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + ([node.module] if getattr(node, "module", None) else [])
            found += [f"import {name}" for name in names if name.split(".")[0] in RUNNING]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            unsafe = name in CALLED
            safe_loader = name == "yaml.load" and options.get("Loader") in OURS
            unsafe |= name.startswith("yaml.") and name not in ("yaml.safe_load", "yaml.safe_dump") and not safe_loader
            unsafe |= name.endswith("from_pretrained") and options.get("trust_remote_code") != "False"
            unsafe |= name in ("np.load", "numpy.load") and options.get("allow_pickle", "False") != "False"
            unsafe |= name in ("os.system", "torch.load") or options.get("shell") == "True"
            unsafe |= name.endswith("read_array")
            found += [f"{name} on line {node.lineno}"] if unsafe else []
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in LOADERS:
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_runs_what_it_reads(path: Path) -> None:
    """No pickle, no eval or exec, YAML's safe loader only, no remote code."""
    assert not faults(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "eval(text)",
        "exec(open(path).read())",
        "yaml.load(file)",
        "yaml.unsafe_load(file)",
        "class Loader(yaml.UnsafeLoader): ...",
        "np.load(path, allow_pickle=True)",
        "AutoTokenizer.from_pretrained(folder)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_the_search_finds_each(source: str) -> None:
    """The control."""
    assert faults(source)


def test_a_yaml_file_that_asks_for_code_is_refused(tmp_path: Path) -> None:
    """Its tags are no plain values."""
    (tmp_path / "trap.yaml").write_text(f"lr: !!python/object/apply:os.mkdir ['{tmp_path}/sprung']\n")
    with pytest.raises(Refused, match="is not YAML"):
        read_yaml(tmp_path / "trap.yaml", PretrainConfig)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["../out", "a/b", "/etc/passwd", "..", ".", "", "a\0b", 5, None, ["x"], "a/../b"])
def test_a_manifest_names_files_of_its_folder_only(tmp_path: Path, name: Any) -> None:
    """Anything else is refused by that name."""
    with pytest.raises(CheckpointError, match="is not the name of a file in this folder"):
        plain_name(tmp_path, name)
    assert plain_name(tmp_path, "x.safetensors") == "x.safetensors"


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", ".."])
def test_a_checkpoint_that_names_other_files_is_refused(tmp_path: Path, name: str) -> None:
    """Though its seal is right; what lies there is not even opened."""
    (tmp_path / "c").mkdir()
    (tmp_path / "secret").write_text("secret")
    manifest = sealed({"format": 3, "arithmetic": {}, "files": {name: "0" * 64}})
    (tmp_path / "c" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="is not the name of a file in this folder"):
        verify(tmp_path / "c")


def test_a_cache_of_tokens_that_names_other_files_is_refused(tmp_path: Path) -> None:
    """As a checkpoint."""
    (tmp_path / "c").mkdir()
    np.zeros(10, "<u2").tofile(tmp_path / "elsewhere.bin")
    part = {"files": ["../elsewhere.bin"], "documents": 1, "digest": ""}
    (tmp_path / "c" / "manifest.json").write_text(json.dumps({"format": 1, "train": part, "valid": part}))
    with pytest.raises(CheckpointError, match="is not the name of a file in this folder"):
        read_tokenised(tmp_path / "c", 257)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_in_an_npy_file_is_not_run(tmp_path: Path) -> None:
    """It is refused by its type."""
    np.save(tmp_path / "trap.npy", np.array([Trap(tmp_path / "sprung")]), allow_pickle=True)
    with pytest.raises(Refused, match="holds object"):
        prepare(tiny(tmp_path / "run", data=str(tmp_path / "trap.npy")))
    assert not (tmp_path / "sprung").exists()
    np.load(tmp_path / "trap.npy", allow_pickle=True)
    assert (tmp_path / "sprung").exists()
