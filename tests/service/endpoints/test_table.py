"""Named endpoints: what is accepted, what is refused, and that no value is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lacuna.contract.errors import (
    EndpointRefused,
    EndpointUnknown,
)
from service.endpoints.table import Endpoint, Endpoints, SettingsInvalid

GOOD: dict[str, Any] = {
    "base_url": "https://models.example.org/v1/",
    "model": "smollm2",
    "key_variable": "PROD_KEY",
    "context_length": 8192,
}
TOML = """
[prod]
base_url = "https://models.example.org/v1/"
model = "smollm2"
key_variable = "PROD_KEY"
context_length = 8192
"""


def one(**fields: Any) -> Endpoint:
    return Endpoints.from_json(json.dumps({"prod": {**GOOD, **fields}})).find("prod")


def test_toml_and_json_say_the_same() -> None:
    from_toml = Endpoints.from_toml(TOML).find("endpoint:prod")
    assert from_toml == one()
    assert from_toml.base_url == "https://models.example.org/v1"
    assert from_toml.root_url == "https://models.example.org"
    assert [endpoint.name for endpoint in Endpoints.from_toml(TOML)] == ["prod"]


def test_unknown_names_say_which_exist() -> None:
    endpoints = Endpoints.from_toml(TOML)
    with pytest.raises(EndpointUnknown, match="the settings name prod") as refusal:
        endpoints.find("endpoint:http://evil.example")
    assert refusal.value.code == "endpoint_unknown"
    with pytest.raises(EndpointUnknown, match="none at all"):
        Endpoints.from_json("{}").find("x")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"base_url": "ftp://x"}, "base_url: .*http"),
        ({"base_url": "http://user:sk-secret@x/v1"}, "base_url: .*no user"),
        ({"base_url": "http://x/v1?key=sk-secret"}, "base_url: .*without"),
        ({"base_url": "http://[sk-secret"}, "base_url: .*http"),
        ({"api_key": "sk-secret"}, "api_key: Extra inputs"),
        ({"key_variable": "sk-secret"}, "key_variable: "),
        ({"key_file": "/sk-secret"}, "exclude each other"),
        ({"context_length": "sk-secret"}, "context_length: "),
        ({"context_length": 10}, "context_length: .*64"),
        ({"concurrency": 0}, "concurrency: .*1"),
        ({"requests_per_minute": 0}, "requests_per_minute: "),
        ({"input_price": -1}, "input_price: "),
        ({"timeout": 0}, "timeout: "),
        ({"form": "sk-secret"}, "form: "),
        ({"proxy": "socks5://u:sk-secret@x"}, "proxy: .*http"),
    ],
)
def test_faults_name_the_field_and_never_the_value(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsInvalid, match=f"endpoint 'prod': .*{words}") as refusal:
        one(**fields)
    assert "sk-secret" not in f"{refusal.value!r}"


@pytest.mark.parametrize("text", ["[", "[1]", '{"prod": 1}', '{"UPPER": {}}', '{"a b": {}}'])
def test_no_table_of_endpoints(text: str) -> None:
    with pytest.raises(SettingsInvalid):
        Endpoints.from_json(text)
    with pytest.raises(SettingsInvalid):
        Endpoints.from_toml("prod = ")


def test_keys_come_from_a_variable_or_a_file(tmp_path: Path) -> None:
    variables = {"PROD_KEY": " sk-1\n", "EMPTY": " "}
    key = one().key(variables.get)
    assert key is not None
    assert key.get_secret_value() == "sk-1"
    assert "sk-1" not in f"{key!r}{key}{one()!r}"
    (tmp_path / "key").write_text("sk-2\n")
    file = {"key_variable": None, "key_file": str(tmp_path / "key")}
    assert (found := one(**file).key(variables.get)) is not None
    assert found.get_secret_value() == "sk-2"
    assert one(key_variable=None).key(variables.get) is None
    missing = {"key_variable": None, "key_file": str(tmp_path / "none")}
    for endpoint in (one(key_variable="UNSET"), one(key_variable="EMPTY"), one(**missing)):
        with pytest.raises(EndpointRefused, match="is not set where the worker runs"):
            endpoint.key(variables.get)


def test_a_key_with_a_line_break_is_refused_and_not_shown() -> None:
    with pytest.raises(EndpointRefused) as refusal:
        one().key({"PROD_KEY": "sk-a\r\nsk-b"}.get)
    assert "sk-" not in str(refusal.value)


def test_a_proxy_may_hold_a_password_that_is_not_shown() -> None:
    endpoint = one(proxy="http://user:sk-secret@proxy:3128")
    assert "sk-secret" not in f"{endpoint!r} {endpoint.model_dump_json()}"
