"""From questions to tokens, as one model reads them: chat template, special tokens, checks.

Everything for which a tokenizer or a length may be refused is found out here, before anything is
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError

from lacuna.architectures.table import max_length
from lacuna.contract.endpoints import Form
from lacuna.contract.errors import DocumentsUnusable, TooLong
from workers.documents import check_vocabulary
from workers.documents.tokens import encode, policy, unknown_token
from workers.models.loaded import LoadedModel
from workers.recall.reader import Message, Question

_UNKNOWN_SHARE = 0.01
"""Of the prompts' tokens; with more, the tokenizer was not made for these texts."""


@dataclass(frozen=True)
class Row:
    """One question in tokens: ids of prompt and answer, of which the last `answer` are counted."""

    ids: list[int]
    answer: int

    @property
    def prompt(self) -> int:
        """Tokens before the answer."""
        return len(self.ids) - self.answer


class Encoding:
    """How one model reads prompts.

    Args:
        loaded: a model with its tokenizer.
        chat: use the tokenizer's chat template where it has one.
        field: of the request, which errors name.

    Attributes:
        form: in which prompts must come.
        preamble: tokens before the first word of a prompt.

    Raises:
        DocumentsUnusable: the model has no tokenizer, or a template that takes no question.
    """

    def __init__(self, loaded: LoadedModel, *, chat: bool, field: str = "recall") -> None:
        self._field = field
        if loaded.tokenizer is None:
            raise DocumentsUnusable(
                f"`{self._field}`: {loaded.id} has no tokenizer to write a question with",
                field=self._field,
            )
        self._loaded = loaded
        self._tokenizer: Any = loaded.tokenizer
        self._prefix = list(policy(self._tokenizer).prefix)
        templated = chat and bool(getattr(self._tokenizer, "chat_template", None))
        self.form: Form = "continued" if templated else "plain"
        self.preamble = self._count_preamble()

    def count(self, text: str) -> int:
        """Tokens of a text alone, without special tokens."""
        return len(encode(self._tokenizer, text)) if text else 0

    def row(self, question: Question) -> Row:
        """A question in tokens; the answer's are those that the prompt alone does not have."""
        text, special = self.rendered(question.prompt)
        prefix = self._prefix if special else []
        # Tokenizers may merge at the border: the answer's tokens are those behind the shared ones.
        prompt = encode(self._tokenizer, text)
        whole = encode(self._tokenizer, text + question.answer)
        shared = next(
            (i for i, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]),
            min(len(prompt), len(whole)),
        )
        if shared == 0 and not prefix:
            raise DocumentsUnusable(f"`{self._field}`: a prompt has no token", field=self._field)
        return Row([*prefix, *whole], len(whole) - shared)

    def rendered(self, prompt: str | tuple[Message, ...]) -> tuple[str, bool]:
        """The text that the model reads, and whether special tokens come before it."""
        if isinstance(prompt, str):
            return prompt, True
        messages = [{"role": m.role, "content": m.content} for m in prompt]
        goes_on = prompt[-1].role == "assistant"
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                continue_final_message=goes_on,
                add_generation_prompt=not goes_on,
            )
        except (TemplateError, ValueError) as error:
            raise DocumentsUnusable(
                f"`{self._field}`: the chat template of {self._loaded.id} does not take a question "
                f"and the beginning of its answer: {error}",
                field=self._field,
            ) from None
        return str(text), False

    def _count_preamble(self) -> int:
        if self.form == "plain":
            return len(self._prefix)
        mark = "xyzzy"
        text, _ = self.rendered((Message("user", mark), Message("assistant", "It is")))
        return len(encode(self._tokenizer, text.partition(mark)[0]))

    def check(self, questions: Sequence[Question], rows: Sequence[Row]) -> None:
        """Refuse what cannot be read or told apart; errors as in `WeightsReader.read`."""
        longest = max(len(row.ids) for row in rows)
        limit = max_length(self._loaded.text_config)
        if limit is not None and longest - 1 > limit:
            raise TooLong(
                f"`sequence_length`: a prompt has {longest - 1} tokens with question and chat "
                f"template, {self._loaded.id} reads {limit}",
                field="sequence_length",
            )
        check_vocabulary(
            torch.tensor([max(max(row.ids) for row in rows)]),
            self._loaded,
            self._field,
            scored=True,
        )
        self._check_unknown(rows)
        self._check_answers(questions)

    def _check_unknown(self, rows: Sequence[Row]) -> None:
        unknown = unknown_token(self._tokenizer)
        if unknown is None:
            return
        share = np.mean([np.mean(np.array(row.ids) == unknown) for row in rows])
        answers = np.mean([unknown in row.ids[row.prompt :] for row in rows])
        if share > _UNKNOWN_SHARE or answers > 0:
            name = self._tokenizer.convert_ids_to_tokens(unknown)
            raise DocumentsUnusable(
                f"`{self._field}`: the tokenizer of {self._loaded.id} reads {share:.1%} of the "
                f"prompts and a part of {answers:.0%} of the answers as {name}: it "
                "was not made for these texts",
                field=self._field,
            )

    def _check_answers(self, questions: Sequence[Question]) -> None:
        """Answers that differ must differ in tokens: some tokenizers drop what they do not know."""
        texts = {answer for q in questions for answer in (q.answer, *q.alternatives)}
        tokens = {text: tuple(encode(self._tokenizer, text)) for text in texts}
        for question in questions:
            own = tokens[question.answer]
            same = [a for a in question.alternatives if tokens[a] == own]
            if not own or same:
                told = f"cannot be told from {same[0]!r}" if same else "has no tokens"
                raise DocumentsUnusable(
                    f"`{self._field}`: the answer {question.answer!r} {told} in the tokenizer of "
                    f"{self._loaded.id}",
                    field=self._field,
                )
