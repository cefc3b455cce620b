"""The OpenAPI document is what the app says; its examples are what the service takes and gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate

from lacuna.contract.profile_requests import METHOD_VERSION
from service.gateway import openapi
from service.gateway.app import create_app
from service.settings import Settings

ROOT = Path(__file__).parent.parent
STORED = ROOT / "openapi" / "openapi.json"
EXAMPLES = sorted((ROOT / "openapi" / "examples").glob("*.json"))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STORED.read_text())
    return found


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {o["operationId"]: o for item in document["paths"].values() for o in item.values()}


def test_the_stored_document_is_up_to_date() -> None:
    fresh = openapi.text(create_app(Settings()))
    assert fresh == STORED.read_text(), "run `python -m service.gateway.write_openapi`"


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    validate(document)


def test_every_operation_has_an_example(document: dict[str, Any]) -> None:
    shown = {path.name.split(".")[0] for path in EXAMPLES}
    answers = {
        name
        for name, operation in operations(document).items()
        if any(
            "application/json" in r.get("content", {})
            for s, r in operation["responses"].items()
            if s < "3"
        )
    }
    assert answers - shown == set()


def test_every_refusal_is_a_problem(document: dict[str, Any]) -> None:
    for name, operation in operations(document).items():
        for status, answer in operation["responses"].items():
            if status >= "4":
                assert list(answer["content"]) == ["application/problem+json"], (name, status)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_fit_their_schemas(path: Path, document: dict[str, Any]) -> None:
    name, kind, _ = path.name.split(".")
    operation = operations(document)[name]
    part = (
        operation["requestBody"]
        if kind == "request"
        else operation["responses"][kind.removeprefix("response-")]
    )
    media = (
        "application/json" if "application/json" in part["content"] else next(iter(part["content"]))
    )
    schema = {**part["content"][media]["schema"], "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(json.loads(path.read_text()))


def test_examples_are_of_the_present_method() -> None:
    shown = [
        line.split('"')[3]
        for path in EXAMPLES
        for line in path.read_text().splitlines()
        if '"method_version"' in line
    ]
    assert set(shown) == {METHOD_VERSION}, "run `make examples`"
