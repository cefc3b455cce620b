"""The map of the theory names what exists, and the examples in its docstrings are true."""

import doctest
import importlib
import pkgutil
import re

import pytest

from lacuna import theory

MODULES = [m.name for m in pkgutil.iter_modules(theory.__path__) if not m.name.startswith("_")]


def test_the_map_names_what_exists() -> None:
    assert theory.__doc__ is not None
    names = re.findall(r"`([a-z_]+\.[a-z_0-9]+)`", theory.__doc__)
    assert len(names) > 15
    for name in names:
        module, function = name.split(".")
        assert callable(getattr(importlib.import_module(f"lacuna.theory.{module}"), function))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"lacuna.theory.{name}")).failed == 0
