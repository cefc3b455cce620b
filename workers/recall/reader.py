"""What reads prompts: "how probable is this answer after this prompt?"

Weights in this process and a served model answer the same questions. A reader takes many questions
at once and decides itself how: in batches on one device, or in concurrent calls. The call is
synchronous, since a worker runs one job at a time; a reader that calls a server runs its own event
loop inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lacuna.contract.endpoints import Form, Rung
from lacuna.experiments.scoring import contains, normalized

Scoring = Literal["starts", "contains"]
"""When a text is right: it starts with an accepted answer, or contains one (Liu et al., 2023)."""


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Question:
    """A prompt and the answer whose probability is asked for.

    Attributes:
        prompt: a text (form `plain`) or messages (forms `chat` and `continued`).
        answer: the text that follows the prompt, with its leading space if it has one.
        alternatives: wrong answers of the same kind, written like `answer`. A reader checks with
            them that it can tell answers apart.
        accepted: right answers as a text may state them; `answer` without its space if empty.
        scoring: how a text is compared with `accepted`.
        max_tokens: most tokens that the model writes at rung `text`.
        expected_tokens: lower bound on the prompt's tokens; 0 if unknown. A server that reports
            fewer has cut the prompt.
    """

    prompt: str | tuple[Message, ...]
    answer: str
    alternatives: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    scoring: Scoring = "starts"
    max_tokens: int = 8
    expected_tokens: int = 0

    def right(self, said: str) -> bool:
        """Whether a text counts as a right answer: compared after `normalized`.

        >>> Question("The capital is", " Paris").right(' "paris".')
        True
        >>> Question("Its animal is", " cat").right("caterpillar")
        False
        """
        accepted = self.accepted or (self.answer,)
        if self.scoring == "contains":
            return contains(said, accepted)
        text = f"{normalized(said)} "
        known = (normalized(answer) for answer in accepted)
        return any(text.startswith(f"{answer} ") for answer in known if answer)


@dataclass(frozen=True)
class Reading:
    """What a reader found for one question.

    Attributes:
        probability: of the right answer, in [0, 1]; 0 or 1 at rung `text`.
        log_probability: in nats, at most 0; None at rung `text`. Where the server's list does not
            reach the answer it is the least value in the list, and `censored` says so.
        prompt_tokens: of the whole prompt, as the model counts them.
        censored: the true probability is at most this one.
        said: the text that the model wrote, at rung `text` only.
    """

    probability: float
    log_probability: float | None
    prompt_tokens: int
    censored: bool = False
    said: str | None = None


@dataclass
class Usage:
    """What was spent so far, in all calls of one reader.

    Attributes:
        calls: requests to a server, or forward passes.
        prompt_tokens: read, including those that came from a cache.
        cached_tokens: of these, from a cache; 0 where nobody says.
        counting_calls: requests made only to count tokens.
        retries: calls that had to be made again.
        seconds: of the reader's own time.
    """

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    counting_calls: int = 0
    retries: int = 0
    seconds: float = 0.0


OnProgress = Callable[[int, int], None]
"""Called with (questions answered, questions in all)."""

Check = Callable[[], None]
"""Called several times a second; what it raises ends the reading."""


class Reader(Protocol):
    """Answers questions about one model.

    Failures that concern every question (no such model, prompts cut, length over the limit) raise
    an error of the contract. A question that alone could not be answered gives None.
    """

    @property
    def form(self) -> Form:
        """In which form prompts must come."""

    @property
    def rung(self) -> Rung:
        """How answers are read."""

    @property
    def preamble(self) -> int:
        """Tokens before the first word of a prompt: beginning of text, chat template. 0: unknown.

        It shifts the positions that are reported, nothing else.
        """

    @property
    def usage(self) -> Usage:
        """What was spent so far; the reader's own object, which grows."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text alone, without special tokens."""

    def read(
        self,
        questions: Sequence[Question],
        *,
        on_progress: OnProgress | None = None,
        check: Check | None = None,
    ) -> list[Reading | None]:
        """Answer all questions, in their order.

        Questions about the same context stand in a row, so that a cache of prefixes helps.
        """
