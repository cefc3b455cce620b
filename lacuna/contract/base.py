"""What all wire models share: strict types, no unknown fields, no NaN, six digits, content ids, and
models as users name them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
)
from pydantic_core import CoreSchema, core_schema

PATTERN_WORDS: dict[str, str] = {}
"""What each pattern means. An error says this instead of the regular expression."""


def pattern(expression: str, words: str) -> str:
    """The expression, for a field's `pattern`. `words` is what the error for this field says."""
    PATTERN_WORDS[expression] = words
    return expression


DIGITS = 6
"""Significant digits of numbers on the wire: what the noise of a measurement leaves, at a third of
the bytes. Only `/v1/rollouts` answers in full float64."""


def rounded(value: float) -> float:
    """To `DIGITS` significant digits; keeps order and equality."""
    return float(f"{value:.{DIGITS}g}")


def percent(share: float) -> str:
    """With a sign, and a decimal below 10%: "+3.2%", "+110%"."""
    return f"{share:+.1%}" if abs(share) < 0.0995 else f"{share:+,.0%}"


def rounded_tree(value: Any) -> Any:
    """JSON data with every float rounded to 6 significant digits."""
    if isinstance(value, float):
        return rounded(value)
    if isinstance(value, dict):
        return {name: rounded_tree(inner) for name, inner in value.items()}
    return [rounded_tree(inner) for inner in value] if isinstance(value, list) else value


def rounded_list(values: Iterable[float]) -> list[float]:
    """`rounded` of each; an array is read as fast by its `tolist()`."""
    return [rounded(value) for value in values]


Rounded = Annotated[float, AfterValidator(rounded)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
DIGEST_PATTERN = pattern(r"^[0-9a-f]{32}$", "an id is 32 hex digits (0-9, a-f)")
Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
"""Identifier of jobs and profiles: the first 128 bits of a SHA-256, in hex."""


def _open_names(schema: Any) -> None:
    """Let each field that is one of some names take any name in lax mode; changes the schema.

    Fields, lists and defaults are followed. Models inside are not: they have schemas of their own.
    Unions are not either: what a member refuses tells which member is meant.
    """
    kind = schema["type"]
    if kind in ("model", "function-after", "default", "nullable"):
        _open_inner(schema, "schema")
    elif kind == "model-fields":
        for field in schema["fields"].values():
            _open_inner(field, "schema")
    elif kind == "list":
        _open_inner(schema, "items_schema")


def _open_inner(schema: Any, key: str) -> None:
    inner = schema.get(key)
    if inner is None or (inner["type"] == "model" and schema["type"] != "function-after"):
        return
    # A single name tells the members of a tagged union apart.
    if inner["type"] == "literal" and len(inner["expected"]) > 1:
        either = core_schema.union_schema([inner, core_schema.str_schema()])
        schema[key] = core_schema.lax_or_strict_schema(either, inner, strict=True)
    else:
        _open_names(inner)


def plain(value: Any) -> Any:
    """A value as JSON has it: what has `tolist` (NumPy, pandas, torch) becomes numbers and lists.

    Mappings, lists and tuples are copied and followed; anything else is left as it is.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Mapping):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value


def _whole(value: Any) -> Any:
    value = plain(value)
    return int(value) if type(value) is float and value.is_integer() else value


_PLAIN = frozenset({str, int, float, bool, type(None)})
FROM_ARRAYS = BeforeValidator(plain)
"""Marks a field that takes numbers and arrays of NumPy too."""
WHOLE = BeforeValidator(_whole)
"""Marks a whole number that may be written as 10.0, and may be one of NumPy."""


class Wire(BaseModel):
    """Base of everything that crosses HTTP or Redis.

    Strict: "256" is not an integer and 1 is not a boolean. Unknown fields are refused, so that a
    misspelt option is an error and not a silent default. NaN and Infinity are refused.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    @classmethod
    def of_stored(cls, document: bytes | str) -> Self:
        """Read what was stored, perhaps by another version: fields that only it knows are left out.

        Raises:
            pydantic.ValidationError: what this version needs is not there.
        """
        return cls.model_validate_json(document, extra="ignore")

    @classmethod
    def of_answer(cls, document: bytes | str) -> Self:
        """Read the answer of a service, or a file that holds one; it may be of any version.

        Unknown fields are left out. Where a field is one of some names, an unknown name is kept.

        Raises:
            pydantic.ValidationError: what this version needs is not there.
        """
        return cls.model_validate_json(document, extra="ignore", strict=False)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler, /
    ) -> CoreSchema:
        """The schema that `of_answer` needs; strict mode is unchanged."""
        schema = handler(source)
        _open_names(schema)
        return schema


def canonical(value: Any) -> bytes:
    """One byte string for equal JSON values: sorted keys, no white space, UTF-8."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(value: Any) -> str:
    """Content address of a JSON value (32 hex characters)."""
    return hashlib.sha256(canonical(value)).hexdigest()[:32]


# A hub id is `name` or `owner/name`; the prefixes with a colon are Lacuna's. A path never matches:
# no leading slash or dot, no "..", no percent sign, at most one slash.
_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9_\-]*(?:\.[A-Za-z0-9_\-]+)*"
MODEL_ID_PATTERN = pattern(
    rf"^(?:(?:local|demo|preset|endpoint):{_SEGMENT}|{_SEGMENT}(?:/{_SEGMENT})?)$",
    "a model is a hub id (`name` or `owner/name`), `local:NAME`, `demo:NAME`, `preset:NAME` or "
    "`endpoint:NAME`; names have letters, digits and . _ -",
)


def _is_a_name(value: str) -> str:
    if value.lower() in {"none", "null", "undefined"}:
        raise ValueError(f"{value!r} is what an unset variable prints, not a model")
    return value


ModelId = Annotated[
    str,
    Field(min_length=1, max_length=160, pattern=MODEL_ID_PATTERN),
    AfterValidator(_is_a_name),
]

SERVED_OR_ID_PATTERN = pattern(
    rf"^(?:endpoint:[a-z0-9][a-z0-9._-]{{0,63}}|{MODEL_ID_PATTERN.strip('^$')})$",
    "a model is a hub id (`name` or `owner/name`), `local:NAME`, `demo:NAME` or `endpoint:NAME`; "
    "names have letters, digits and . _ -, those of endpoints small letters",
)
AnyModelId = Annotated[
    str,
    Field(min_length=1, max_length=160, pattern=SERVED_OR_ID_PATTERN),
    AfterValidator(_is_a_name),
]
"""A model by its weights, or `endpoint:NAME`: a served one that the operator named."""
