"""The examples of the docstrings run and give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import mufree.schedule_free

MODULES = [module.name for module in pkgutil.iter_modules(mufree.schedule_free.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name) -> None:
    """Every example in the module."""
    module = importlib.import_module(f"mufree.schedule_free.{name}")
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", ["AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree", "averaged"])
def test_public_names_have_an_example(name) -> None:
    """And what they raise."""
    text = getattr(mufree, name).__doc__
    assert ">>>" in text
    assert "Raises:" in text
