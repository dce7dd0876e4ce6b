"""Every public name says what it takes, gives and raises; its example runs; and the list of names is the real one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

import mufree
from mufree.lm.tuning.settings import FinetuneConfig
from mufree.training.config import PretrainConfig

PACKAGES = ("build", "lm", "mup", "plan", "schedule_free", "studies", "training")
NAMESPACES = {"lm", "studies", "training"}
BY_OPTION = (FinetuneConfig, PretrainConfig)  # their fields are described once, as options of the command line
ERRORS = (mufree.Refused, mufree.NonFiniteLoss)
NEVER_RAISES = {
    # They take a value that was checked when it was made, and compute.
    "build_lr_schedule",
    "describe",
    "memory_plan",
    "Grouped.member_rate",
    "CoordCheck.means",
    "Transfer.sweeps",
    "AdamWScheduleFree.gradient_point",
    "MuReadout.to_quantized",
    # Plain records of what was worked out elsewhere.
    "BaseShapes",
    "CoordCheck",
    "Member",
    "MemoryPlan",
    "OptimizerPlan",
    "ParamGroup",
    "Reason",
    "Run",
    "Scale",
    "Scales",
    "Transfer",
    "ScheduleFree",  # whose settings the subclasses check
    "Grouped.init_single",
}
FORMULAS = [
    "AdamWScheduleFree",
    "BaseShapes",
    "MuAdam",
    "MuAdamWScheduleFree",
    "MuReadout",
    "MuSGD",
    "MuSharedReadout",
    "RAdamScheduleFree",
    "SGDScheduleFree",
    "Scale",
    "attention_scale",
    "averaged",
    "build_lr_schedule",
    "coord_check",
    "lora_scales",
    "lr_transfer",
    "mup_scales",
    "param_groups",
    "parametrize",
    "plan_optimizer",
    "recalibrate",
]


@dataclass(frozen=True)
class Public:
    """A public name with what it stands for."""

    name: str
    value: Any
    is_property: bool = False

    @property
    def text(self) -> str:
        return inspect.getdoc(self.value) or ""

    def section(self, title: str) -> str | None:
        """The indented lines under ``title:``."""
        found = re.search(rf"^{title}:\n((?:(?: +.*)?\n?)+)", self.text, re.MULTILINE)
        return found and found.group(1)

    @property
    def arguments(self) -> set[str]:
        parameters = inspect.signature(self.value).parameters.values()
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        return {stars.get(each.kind, "") + each.name for each in parameters if each.name not in ("self", "cls")}

    @property
    def is_small(self) -> bool:
        """A method of one argument: its first sentence says what that is and what comes back."""
        return "." in self.name and len(self.arguments) < 2

    @property
    def returns_something(self) -> bool:
        if inspect.isclass(self.value) or self.is_property:
            return False
        return "." not in self.name and inspect.signature(self.value).return_annotation not in (
            "None",
            None,
            inspect.Signature.empty,
        )


def public_names() -> dict[str, Any]:
    """All names of the package and of its parts."""
    names = {name: getattr(mufree, name) for name in mufree.__all__ if name not in NAMESPACES}
    for package in PACKAGES:
        part = importlib.import_module(f"mufree.{package}")
        names |= {name: getattr(part, name) for name in part.__all__}
    return names


def everything() -> list[Public]:
    """The public names, and the public methods and properties of the classes among them."""
    found = []
    for name, value in public_names().items():
        found.append(Public(name, value))
        ours = (
            [each for each in inspect.getmro(value) if each.__module__.startswith("mufree.")]
            if inspect.isclass(value)
            else []
        )
        for member, held in [pair for each in ours for pair in vars(each).items()]:
            function = held.fget if isinstance(held, property) else getattr(held, "__func__", held)
            if not member.startswith("_") and inspect.isfunction(function):
                found.append(Public(f"{name}.{member}", function, isinstance(held, property)))
    return list({id(each.value): each for each in reversed(found)}.values())[::-1]


EVERYTHING = everything()
CALLED = [
    each
    for each in EVERYTHING
    if each.value not in BY_OPTION
    and not each.is_property
    and not (inspect.isclass(each.value) and issubclass(each.value, ERRORS))
]
MODULES = [
    module.name
    for module in pkgutil.walk_packages(mufree.__path__, "mufree.")
    if not module.name.startswith(("mufree.cli", "mufree.__main__"))
]


def names(cases: list[Public]) -> list[str]:
    return [each.name for each in cases]


@pytest.mark.parametrize("case", EVERYTHING, ids=names(EVERYTHING))
def test_there_is_a_first_sentence(case) -> None:
    """One that ends, so that it can stand alone."""
    assert re.match(r"[^\n]+[.:]$", case.text.split("\n\n")[0].replace("\n", " ").strip())


DESCRIBED = [each for each in CALLED if not each.is_small]


@pytest.mark.parametrize("case", DESCRIBED, ids=names(DESCRIBED))
def test_every_argument_is_described(case) -> None:
    """Those of the signature, no others."""
    section = case.section("Args") or ""
    described = {
        name.strip() for line in re.findall(r"^    (\S[\w*, ]*): \S", section, re.MULTILINE) for name in line.split(",")
    }
    assert described == case.arguments


RETURNING = [each for each in CALLED if each.returns_something and each.arguments]


@pytest.mark.parametrize("case", RETURNING, ids=names(RETURNING))
def test_what_comes_back_is_described(case) -> None:
    """Under Returns; where nothing is taken, the first sentence says it."""
    assert case.section("Returns")


RAISING = [each for each in CALLED if each.arguments]


@pytest.mark.parametrize("case", RAISING, ids=names(RAISING))
def test_what_is_raised_is_described(case) -> None:
    """Under Raises, or it is known to raise nothing of its own."""
    assert bool(case.section("Raises")) is not (case.name in NEVER_RAISES)


EXAMPLES = [
    name
    for name in mufree.__all__
    if name not in NAMESPACES
    and not (inspect.isclass(getattr(mufree, name)) and issubclass(getattr(mufree, name), ERRORS))
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_there_is_an_example(name) -> None:
    """Of every name but the errors."""
    assert ">>>" in inspect.getdoc(getattr(mufree, name))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_it_is_pasted(name) -> None:
    """From help into a session in which nothing was imported."""
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(mufree, name), name, globs={})
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name) -> None:
    """And give what they say."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", FORMULAS)
def test_the_source_is_named(name) -> None:
    """Of whatever follows a paper or another library's definition."""
    assert Public(name, public_names()[name]).section("References")


def test_the_list_of_names_is_the_real_one() -> None:
    """What ``help(mufree)`` lists is what can be imported."""
    listed = re.findall(r"^    (\w+)  +\S", mufree.__doc__, re.MULTILINE)
    assert sorted(listed) == sorted(mufree.__all__)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("config", BY_OPTION)
def test_every_option_has_a_help(config) -> None:
    """Where a field is an option, its metadata is its description."""
    assert all(len(item.metadata["help"]) > 3 for item in fields(config))


def test_the_version_is_the_packages() -> None:
    """Which is in one place, pyproject.toml; a tree that is not installed says so."""
    try:
        assert mufree.__version__ == version("mufree")
    except PackageNotFoundError:
        assert mufree.__version__ == "not installed"
