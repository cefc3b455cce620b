"""From a question and its chunks to the text that a model reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lacuna.contract.errors import InvalidRequest
from lacuna.contract.experiment_requests import ExperimentQuestion, ExperimentTemplate
from lacuna.experiments import jinja

if TYPE_CHECKING:
    from jinja2 import Template

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Prompt:
    """A prompt whose answer is asked for, in parts. Every form of sending is made of them.

    Attributes:
        system: the system message; empty: none.
        user: the user's message.
        lead: what the reply begins with; may be empty.
    """

    system: str
    user: str
    lead: str

    @property
    def text(self) -> str:
        """All of it as one text."""
        return "\n\n".join(part for part in (self.system, self.user) if part) + (
            f"\n{self.lead}" if self.lead else ""
        )

    def answer(self, answer: str) -> str:
        """The answer as it follows the lead: with a space, unless white space stands before it."""
        before = self.lead or self.user
        return answer if not before or before[-1].isspace() else f" {answer}"


class Renderer:
    """Renders questions by one template.

    Raises:
        InvalidRequest: the template cannot be used; names `template`.
    """

    def __init__(self, template: ExperimentTemplate) -> None:
        self._template = template
        if template.jinja is None:
            _check(template.chunk, {"text", "number", "id", "document"}, "chunk")
            _check(template.ask, {"question"}, "ask")
        else:
            _ = self._jinja

    @cached_property
    def _jinja(self) -> Template:
        return jinja.compiled(self._template.jinja or "")

    def __call__(self, asked: ExperimentQuestion, order: Sequence[int]) -> Prompt:
        """The prompt with the chunks of these indices in this order; none: closed book.

        Raises:
            InvalidRequest: the template does not fit the question, or the prompt is too long.
        """
        template = self._template
        if template.jinja is not None:
            chunks: list[Mapping[str, object]] = [
                _fields(asked, index, place) for place, index in enumerate(order)
            ]
            user = jinja.rendered(self._jinja, asked.question, chunks)
        else:
            user = self._plain(asked, order)
        if not user.strip():
            raise InvalidRequest("`template` gives an empty prompt", field="template")
        return Prompt(template.system or "", user, template.answer)

    def _plain(self, asked: ExperimentQuestion, order: Sequence[int]) -> str:
        template = self._template
        ask = _filled(template.ask, {"question": asked.question})
        chunks = [
            _filled(template.chunk, _fields(asked, index, place))
            for place, index in enumerate(order)
        ]
        first = [ask] if template.question in ("first", "both") else []
        last = [ask] if template.question in ("last", "both") else []
        if not chunks:
            last = [] if first else last  # once is enough
        opening = [template.instructions] if template.instructions else []
        return template.separator.join([*opening, *first, *chunks, *last])


def _fields(asked: ExperimentQuestion, index: int, place: int) -> dict[str, object]:
    chunk = asked.chunks[index]
    return {
        "number": place + 1,
        "text": chunk.text,
        "id": chunk.id,
        "document": chunk.document or "",
    }


def _filled(pattern: str, fields: Mapping[str, object]) -> str:
    """The pattern with each {name} replaced once; what a text holds in braces stays as it is."""
    return _PLACEHOLDER.sub(lambda found: str(fields[found[1]]), pattern)


def _check(pattern: str, known: set[str], field: str) -> None:
    for name in _PLACEHOLDER.findall(pattern):
        if name not in known:
            there = ", ".join(f"{{{one}}}" for one in sorted(known))
            raise InvalidRequest(
                f"`template.{field}`: there is no {{{name}}}; there is {there}",
                field=f"template.{field}",
            )


def around(render: Callable[[], Prompt], first: str, last: str) -> tuple[str, str]:
    """What stands before the first chunk and behind the last one, where that can be told.

    Args:
        render: gives the prompt.
        first: text of the first chunk.
        last: text of the last chunk.
    """
    text = render().text
    start, end = text.find(first), text.rfind(last)
    if start < 0 or end < 0:
        return "", ""
    return text[:start], text[end + len(last) :]
