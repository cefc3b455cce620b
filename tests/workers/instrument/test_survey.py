"""docs/models.md and the gateway's list of architectures: written and checked by trying them out.

To rewrite them: LACUNA_UPDATE_DOCS=1 pytest -m slow tests/workers/instrument/test_survey.py
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator

import pytest
import transformers
from survey import CATALOGUE, DOCUMENT, Row, catalogue, counts, parse, render, survey
from tiny_types import MODEL_TYPES

SAMPLE = ["bert", "bloom", "cohere", "falcon", "gemma2", "gpt2", "gpt_neox", "gpt_oss"]
SAMPLE += [
    "granite",
    "jamba",
    "llama",
    "llama4",
    "mamba",
    "mixtral",
    "mpt",
    "olmo2",
    "opt",
    "zamba2",
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Configurations of types we did not write may warn of anything."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    transformers.logging.set_verbosity(before)


def written() -> dict[str, Row]:
    page = DOCUMENT.read_text()
    if f"transformers {transformers.__version__}," not in page:
        pytest.skip("docs/models.md describes another version of transformers")
    return parse(page)


@pytest.mark.parametrize("model_type", SAMPLE)
def test_the_page_tells_the_truth(model_type: str) -> None:
    assert written()[model_type] == survey(model_type)


def test_the_page_has_every_type() -> None:
    rows = written()
    assert list(rows) == MODEL_TYPES
    number = counts(list(rows.values()))
    assert number["full"] + number["influence only"] >= 140
    assert number["not working"] == 0


def test_the_gateways_list_is_the_pages() -> None:
    rows = written()
    listed = json.loads(CATALOGUE.read_text())
    assert listed["transformers"] == transformers.__version__
    for support in ("full", "influence_only"):
        expected = [row.type for row in rows.values() if row.support == support.replace("_", " ")]
        assert listed[support] == expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_types() -> None:
    rows = [survey(model_type) for model_type in MODEL_TYPES]
    if os.environ.get("LACUNA_UPDATE_DOCS"):
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(render(rows))
        CATALOGUE.write_text(catalogue(rows))
    assert written() == {row.type: row for row in rows}
    assert CATALOGUE.read_text() == catalogue(rows)
