"""A reader with a planted curve, tiny models with a template, and questions to ask them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from workers.recall.layout import Group
from workers.recall.reader import (
    Check,
    Form,
    Message,
    OnProgress,
    Question,
    Reading,
    Rung,
    Usage,
)

if TYPE_CHECKING:
    from workers.models.loaded import LoadedModel

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
CONTEXT = "The lantern is red. The violin is green. The old tower is blue, and so it was. " * 3


class PlantedReader:
    """Knows the facts, and recalls each as its place among them says."""

    def __init__(
        self,
        groups: Sequence[Group],
        recall: Callable[[int, int, str], float | None],
        *,
        form: Form = "plain",
        rung: Rung = "answer",
        preamble: int = 0,
    ) -> None:
        self.form, self.rung, self.preamble, self.usage = form, rung, preamble, Usage()
        self.asked: list[Question] = []
        self._recall = recall
        self._facts = {
            item.question: (number, [other.text for other in group.items], item.text)
            for number, group in enumerate(groups)
            for item in group.items
        }

    def count(self, texts: Sequence[str]) -> list[int]:
        return [len(re.findall(r"\w+|[^\w\s]", text)) for text in texts]

    def read(
        self,
        questions: Sequence[Question],
        *,
        on_progress: OnProgress | None = None,
        check: Check | None = None,
    ) -> list[Reading | None]:
        self.asked.extend(questions)
        return [self._one(question) for question in questions]

    def _one(self, question: Question) -> Reading | None:
        whole = question.prompt
        text = whole if isinstance(whole, str) else whole[0].content
        # The longest question that fits: one may be part of another.
        known = max((q for q in self._facts if q in text), key=len)
        number, facts, wanted = self._facts[known]
        standing = sorted((text.index(fact), fact) for fact in facts if fact in text)
        order = [fact for _, fact in standing]
        kind = "closed" if not order else "alone" if len(order) == 1 else "asked"
        depth = order.index(wanted) if wanted in order else -1
        found = self._recall(number, depth, kind)
        if found is None:
            return None
        log = None if self.rung == "text" else float(np.log(max(found, 1e-300)))
        return Reading(found, log, self.count([text])[0])


@pytest.fixture
def planted() -> type[PlantedReader]:
    return PlantedReader


@pytest.fixture
def make(
    tiny_model: Callable[..., Any],
    make_tokenizer: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
) -> Callable[..., LoadedModel]:
    def build(
        family: str = "llama", template: str | None = None, chat: bool = False, **changes: Any
    ) -> LoadedModel:
        tokenizer = make_tokenizer(template)
        if chat:
            tokenizer.chat_template = TEMPLATE
        return as_loaded(tiny_model(family, **changes), tokenizer)

    return build


@pytest.fixture
def colours() -> Callable[..., list[Question]]:
    """Questions about colours, in plain text or for a chat."""

    def ask(chat: bool = False) -> list[Question]:
        """Two contexts with three questions each, and three questions without any."""
        found = []
        for context in (CONTEXT, CONTEXT[20:] + "Some more words here.", ""):
            for thing, colour in (("lantern", "red"), ("violin", "green"), ("old tower", "blue")):
                user, lead = f"{context}\nWhat is the colour of the {thing}?", f"The {thing} is"
                prompt = (
                    (Message("user", user), Message("assistant", lead))
                    if chat
                    else f"{user}\n{lead}"
                )
                others = tuple(f" {c}" for c in ("red", "green", "blue") if c != colour)
                found.append(Question(prompt, f" {colour}", others))
        return found

    return ask
