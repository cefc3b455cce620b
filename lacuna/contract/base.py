"""What all wire models share: strict types, no unknown fields, no NaN, never mutated."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

PATTERN_WORDS: dict[str, str] = {}
"""What each pattern stands for: a refusal says this instead of the regular expression."""


def pattern(expression: str, words: str) -> str:
    """The expression, for a field's `pattern`; `words` are what a refusal says."""
    PATTERN_WORDS[expression] = words
    return expression


Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
DIGEST_PATTERN = pattern(r"^[0-9a-f]{32}$", "an id is 32 hex digits (0-9, a-f)")
Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
"""Identifier of jobs and profiles: the first 128 bits of a SHA-256, in hex."""


class Wire(BaseModel):
    """Base of everything that crosses HTTP or Redis.

    Strict: "256" is no integer and 1 is no boolean. Unknown fields are refused, so that a
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
        """Read what was stored, perhaps by another version: fields that it added are left out.

        Raises:
            pydantic.ValidationError: what this version needs is not there.
        """
        return cls.model_validate_json(document, extra="ignore")


def canonical(value: Any) -> bytes:
    """One byte string for equal JSON values: sorted keys, no white space, UTF-8."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(value: Any) -> str:
    """Content address of a JSON value (32 hex characters)."""
    return hashlib.sha256(canonical(value)).hexdigest()[:32]
