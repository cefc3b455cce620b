"""The map of the theory names what exists, and the examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re

import pytest

import lacuna
from lacuna import theory

# Adapters need their own library to be imported at all.
ADAPTERS = {"lacuna.langchain", "lacuna.llama_index", "lacuna.haystack"}
MODULES = [
    found.name
    for found in pkgutil.walk_packages(lacuna.__path__, "lacuna.")
    if found.name not in ADAPTERS
]


def test_the_map_names_what_exists() -> None:
    assert theory.__doc__ is not None
    names = re.findall(r"`([a-z_]+\.[a-z_0-9]+)`", theory.__doc__)
    assert len(names) > 15
    for name in names:
        module, function = name.split(".")
        assert callable(getattr(importlib.import_module(f"lacuna.theory.{module}"), function))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
