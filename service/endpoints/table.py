"""Named endpoints, as the operator writes them down.

    [prod]
    base_url = "https://models.example.org/v1"
    model = "smollm2"
    key_variable = "PROD_KEY"
    context_length = 8192

The same table as JSON, `{"prod": {"base_url": ...}}`, fits into one variable. A request names an
endpoint as `endpoint:prod`: it can never bring an address of its own. The table holds no key, only
where the worker finds it; the gateway reads the table and never a key.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from lacuna.contract.errors import (
    EndpointRefused,
    EndpointUnknown,
)

PREFIX = "endpoint:"
NAME = r"^[a-z0-9][a-z0-9_-]*(\.[a-z0-9_-]+)*$"


class SettingsInvalid(ValueError):
    """The operator's table of endpoints cannot be used; the message never holds a value of it."""


def _http_address(value: str) -> str:
    try:
        parts = urlsplit(value)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ValueError("an address begins with http:// or https:// and names a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address holds no user and no password: use key_variable or key_file")
    if parts.query or parts.fragment:
        raise ValueError("an address ends with its path, without ? or #")
    return value.rstrip("/")


def _proxy_address(value: SecretStr) -> SecretStr:
    parts = urlsplit(value.get_secret_value())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a proxy begins with http:// or https:// and names a host")
    return value


Price = Annotated[float, Field(ge=0.0, le=1e6)]


class Endpoint(BaseModel):
    """One served model: where it answers, how it is asked, and what it costs."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    name: Annotated[str, Field(pattern=NAME, max_length=64)]
    """What requests call it, after `endpoint:`."""
    base_url: Annotated[str, AfterValidator(_http_address)]
    """Address in front of `/completions` and `/chat/completions`, mostly ending in `/v1`."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """What the server calls the model."""
    key_variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Name of the environment variable that holds the key."""
    key_file: Path | None = None
    """File that holds the key; white space around it is cut off."""
    context_length: Annotated[int, Field(ge=64, le=100_000_000)]
    """Tokens that the server takes, prompt and answer together."""
    input_price: Price = 0.0
    """Price of a million prompt tokens, in any currency."""
    output_price: Price = 0.0
    """Price of a million generated tokens, in the same currency."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 2
    """Calls under way at once."""
    requests_per_minute: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    """Calls started per minute at most; null: no limit."""
    timeout: Annotated[float, Field(gt=0.0, le=3600.0)] = 120.0
    """Seconds that one call may take in all."""
    form: Literal["chat", "plain"] = "chat"
    """Whether prompts go through the server's chat template, or to the model as they are. Choose
    what the deployed application does."""
    ca_file: Path | None = None
    """Certificates to trust in place of the usual ones (PEM)."""
    proxy: Annotated[SecretStr, AfterValidator(_proxy_address)] | None = None
    """Proxy for all calls; it may hold a password, so it is treated as a secret."""

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.key_variable is not None and self.key_file is not None:
            raise ValueError("key_variable and key_file exclude each other")
        return self

    @property
    def root_url(self) -> str:
        """The address without `/v1`: where servers keep `/tokenize` and their native routes."""
        return self.base_url.removesuffix("/v1")

    def key(self, variable: Callable[[str], str | None]) -> SecretStr | None:
        """The key, or None where the endpoint needs none.

        Args:
            variable: gives an environment variable's value, or None.

        Raises:
            EndpointRefused: the variable is unset, or the file cannot be read.
        """
        if self.key_variable is None and self.key_file is None:
            return None
        found: str | None = None
        if self.key_variable is not None:
            found = variable(self.key_variable)
        elif self.key_file is not None:
            try:
                found = self.key_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                found = None
        found = (found or "").strip()
        if not found or not found.isascii() or not found.isprintable():
            raise EndpointRefused(
                f"`model`: the key of endpoint {self.name!r} is not set where the worker runs",
                field="model",
            ) from None
        return SecretStr(found)


class Endpoints:
    """All endpoints of the settings, by name."""

    def __init__(self, table: Mapping[str, Endpoint]) -> None:
        self._table = dict(table)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._table.values())

    def __len__(self) -> int:
        return len(self._table)

    def find(self, name: str) -> Endpoint:
        """The endpoint of that name, with or without `endpoint:` in front.

        Raises:
            EndpointUnknown: naming those that exist.
        """
        short = name.removeprefix(PREFIX)
        if short not in self._table:
            known = ", ".join(sorted(self._table)) or "none at all"
            raise EndpointUnknown(
                f"`model`: no endpoint is named {short[:64]!r}; the settings name {known}",
                field="model",
            )
        return self._table[short]

    @classmethod
    def from_setting(cls, value: str) -> Self:
        """Endpoints of a setting: a JSON table, or the path of a TOML file; empty: none.

        Raises:
            SettingsInvalid: neither, or the file cannot be read.
        """
        if not value.strip():
            return cls({})
        if value.lstrip().startswith("{"):
            return cls.from_json(value)
        path = Path(value).expanduser()
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            raise SettingsInvalid(f"the file of endpoints {path} cannot be read") from None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no log may show: passwords of proxies, encoded and plain."""
        found: list[str] = []
        for endpoint in self:
            if endpoint.proxy is not None:
                word = urlsplit(endpoint.proxy.get_secret_value()).password
                found += [word, unquote(word)] if word else []
        return tuple(found)

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Endpoints from the text of a TOML file, one table each.

        Raises:
            SettingsInvalid: not TOML, or a field is missing, unknown or out of its bounds.
        """
        try:
            return cls._from_table(tomllib.loads(text))
        except tomllib.TOMLDecodeError:
            raise SettingsInvalid("the file of endpoints is not TOML") from None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Endpoints from JSON, an object of objects.

        Raises:
            SettingsInvalid: not JSON, or a field is missing, unknown or out of its bounds.
        """
        try:
            return cls._from_table(json.loads(text))
        except json.JSONDecodeError:
            raise SettingsInvalid("the endpoints are not JSON") from None

    @classmethod
    def _from_table(cls, table: Any) -> Self:
        if not isinstance(table, dict) or not all(isinstance(v, dict) for v in table.values()):
            raise SettingsInvalid("endpoints are a table: a name, and under it the fields")
        found = {}
        for name, fields in table.items():
            try:
                found[name] = Endpoint.model_validate({**fields, "name": name})
            except ValidationError as error:
                raise SettingsInvalid(f"endpoint {name[:64]!r}: {_said(error)}") from None
        return cls(found)


def _said(error: ValidationError) -> str:
    """Field and reason of each fault, without the values."""
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'the table'}: {fault['msg']}"
        for fault in error.errors(include_input=False, include_context=False, include_url=False)
    )
