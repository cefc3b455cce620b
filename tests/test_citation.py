"""CITATION.cff: what tools that read it need, in step with the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_the_citation_is_complete_and_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert str(cited["version"]) == project["version"]
    assert cited["license"] in project["license"]
    readme = (ROOT / "README.md").read_text()
    for reference in cited["references"]:
        (identifier,) = reference["identifiers"]
        assert identifier["value"].replace(":", " ") in readme or (
            identifier["value"].removeprefix("arXiv:") in readme
        )
