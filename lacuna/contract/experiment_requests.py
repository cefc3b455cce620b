"""What POST /v1/experiments takes, and what it costs: orders of chunks compared on the user's own
questions.

Texts of a request are never stored and never returned. Digests stand for them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from lacuna.contract.base import AnyModelId, Digest, Rounded, Wire, digest
from lacuna.contract.calibrations import RelevanceScale
from lacuna.contract.placements import MAX_DENSITY, Number, Slot, Source
from lacuna.contract.profile_requests import REVISION_PATTERN, ProfileRequest, forward_cost

EXPERIMENT_METHOD_VERSION = "1"
"""Changes whenever the same request gives other numbers; part of every experiment's id."""
LEAST_QUESTIONS = 12
"""Questions below which nothing is claimed."""
ADVISED_QUESTIONS = 100
"""Questions below which a result says that it stands on few."""
MAX_QUESTIONS = 1_000
MAX_QUESTION_CHUNKS = 100
"""Chunks of one question."""
MAX_ALL_CHUNKS = 8_000
"""Chunks of all questions together."""
MAX_EXPERIMENT_TOKENS = 20_000_000
"""Prompt tokens that an experiment may read, by the estimate of `prompt_tokens`."""
CHARACTERS_PER_TOKEN = 4.0
"""Assumed where no tokenizer is at hand; English prose has 4 to 4.5."""
CHAT_TOKENS = 40
"""Of a chat template, about."""

OrderName = Literal[
    "given",
    "relevance_first",
    "relevance_last",
    "zigzag_best_first",
    "zigzag_best_last",
    "document_order",
    "random",
    "random_again",
    "advised",
    "optimal",
]
"""`given`: as the request has the chunks. `relevance_first`, `relevance_last`: best score first or
last. Zigzags: best scores at both ends, the best one first or last. `document_order`: chunks of a
`document` one after another by `position`. `random`, `random_again`: drawn again for each question
from the seed; against each other they show what an order that means nothing looks like. `advised`,
`optimal`: what POST /v1/placements returns with that strategy, along `profile_id` or `density`."""
CURVE_ORDERS: frozenset[OrderName] = frozenset({"advised", "optimal"})
Scoring = Literal["log_probability", "contains", "exact", "regex"]

_Answer = Annotated[str, Field(min_length=1, max_length=200)]
_Id = Annotated[str, Field(min_length=1, max_length=200)]


class ExperimentChunk(Wire):
    """One retrieved chunk of a question."""

    id: _Id
    """Unique within its question."""
    text: str = Field(min_length=1, max_length=50_000)
    score: Number
    """As the retriever gave it, on the request's `relevance_scale`."""
    document: str | None = Field(default=None, min_length=1, max_length=512)
    """Name of the text that it was cut from; for `document_order`."""
    position: Number | None = None
    """Where it stands in `document`: any number that rises."""
    pinned: Literal["first", "last"] | Slot | None = None
    """Keep it first, last, or at this place (0-based) in every order."""
    gold: bool | None = None
    """Whether it holds the answer. Null: it does if an accepted answer stands in its text."""

    @model_validator(mode="after")
    def _position_needs_its_document(self) -> Self:
        if self.position is not None and self.document is None:
            raise ValueError("`position` needs the `document` that it counts in")
        return self


class ExperimentQuestion(Wire):
    """One question with its chunks and the answers that count as right."""

    id: _Id | None = None
    """Default: its number, from 1."""
    question: str = Field(min_length=1, max_length=4_000)
    chunks: Annotated[
        list[ExperimentChunk], Field(fail_fast=True, min_length=2, max_length=MAX_QUESTION_CHUNKS)
    ]
    """In the order that is used today."""
    answers: Annotated[list[_Answer], Field(fail_fast=True, min_length=1, max_length=20)]
    """Accepted answers. `log_probability` reads the first one. For `regex` they are patterns."""

    @model_validator(mode="after")
    def _chunks_are_distinct(self) -> Self:
        seen: set[str] = set()
        slots: set[int] = set()
        placed: dict[str, bool] = {}
        for chunk in self.chunks:
            if chunk.id in seen:
                raise ValueError(f"`chunks`: the id {chunk.id!r} repeats")
            seen.add(chunk.id)
            if isinstance(chunk.pinned, int):
                if chunk.pinned in slots or chunk.pinned >= len(self.chunks):
                    raise ValueError(
                        f"`chunks`: place {chunk.pinned} is pinned twice, or is none of the "
                        f"{len(self.chunks)} places"
                    )
                slots.add(chunk.pinned)
            if chunk.document is not None:
                known = chunk.position is not None
                if placed.setdefault(chunk.document, known) != known:
                    raise ValueError(
                        f"`chunks`: of the document {chunk.document!r} some have a `position` and "
                        "some have none"
                    )
        return self


class ExperimentTemplate(Wire):
    """How question and chunks become a prompt. The plain fields are enough for most prompts."""

    form: Literal["auto", "plain", "chat"] = "auto"
    """`auto`: through the model's chat template where it has one. `chat`: the same, and refused
    where it has none. `plain`: never. For an endpoint its own setting decides."""
    system: str | None = Field(default=None, min_length=1, max_length=10_000)
    """The system message of a chat. In plain text it stands in front."""
    instructions: str = Field(
        default="Answer the question with the passages. Write the answer alone, in a few words.",
        max_length=10_000,
    )
    """In front of the user's message; may be empty."""
    chunk: str = Field(default="[{number}] {text}", min_length=1, max_length=1_000)
    """One chunk: `{text}`, and if you like `{number}` (from 1, by place), `{id}` and
    `{document}`."""
    separator: str = Field(default="\n\n", max_length=100)
    """Between two chunks, and between the parts of the message."""
    question: Literal["last", "first", "both"] = "last"
    """Where the question stands: behind the chunks, in front of them, or both."""
    ask: str = Field(default="Question: {question}", min_length=1, max_length=1_000)
    """The question: `{question}`."""
    answer: str = Field(default="Answer:", max_length=500)
    """What the reply begins with. Behind it the answer is read. May be empty."""
    jinja: str | None = Field(default=None, min_length=1, max_length=10_000)
    """The whole message as a Jinja template, in place of `instructions`, `chunk`, `separator`,
    `question` and `ask`. It sees `question` and `chunks`, each with `number`, `text`, `id` and
    `document`. It may loop over `chunks`, test with `if` and use a few filters; calls, assignments
    and loops inside loops are refused."""

    @model_validator(mode="after")
    def _names_what_it_needs(self) -> Self:
        if "{text}" not in self.chunk:
            raise ValueError("`chunk` must have {text} in it")
        if "{question}" not in self.ask:
            raise ValueError("`ask` must have {question} in it")
        if self.jinja is not None:
            plain = {"instructions", "chunk", "separator", "question", "ask"}
            if given := sorted(plain & self.model_fields_set):
                raise ValueError(f"`jinja` is the whole message: leave out `{given[0]}`")
        return self


class ExperimentBudget(Wire):
    """What the experiment may spend; null: no limit beyond the service's own."""

    max_calls: int | None = Field(default=None, ge=1, le=10_000_000)
    """Requests to an endpoint, retries included; prompts read by weights."""
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000_000)
    """Prompt and generated tokens together."""
    max_cost: float | None = Field(default=None, gt=0, le=1e9)
    """At the endpoint's prices, in their currency."""


class ExperimentRequest(Wire):
    """Which order of the chunks answers your own questions best, if it matters at all."""

    model: AnyModelId
    """A model by its weights (hub id, `local:NAME`, `demo:NAME`), or `endpoint:NAME`."""
    revision: str | None = Field(default=None, pattern=REVISION_PATTERN)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    questions: Annotated[
        list[ExperimentQuestion], Field(fail_fast=True, min_length=1, max_length=MAX_QUESTIONS)
    ]
    """At most 1,000, with 8,000 chunks in all. They are never stored and never returned."""
    template: ExperimentTemplate = ExperimentTemplate()
    orders: list[OrderName] = Field(
        default=["given", "relevance_first", "relevance_last", "zigzag_best_last"],
        fail_fast=True,
        min_length=1,
        max_length=10,
    )
    reference: OrderName = "given"
    """The order that all others are compared with: what you use today. It is read in any case."""
    profile_id: Digest | None = None
    """The curve for `advised` and `optimal`. Give this or `density`."""
    source: Source | None = None
    """Which curve of the profile. Default: `measured`."""
    density: (
        Annotated[
            list[Annotated[float, Field(ge=0, le=1e12)]],
            Field(fail_fast=True, min_length=1, max_length=MAX_DENSITY),
        ]
        | None
    ) = None
    """A curve of your own over relative positions; 1 is uniform."""
    relevance_scale: RelevanceScale = "score"
    """What `score` is, as in POST /v1/placements."""
    scoring: Literal["auto", "log_probability", "contains", "exact", "regex"] = "auto"
    """`log_probability`: the probability of the first accepted answer. `contains`: the model writes
    a reply, which counts as right if an accepted answer stands in it, after case, punctuation and
    articles are dropped. `exact`: the reply is an accepted answer, by the same comparison. `regex`:
    a pattern is found in the reply. `auto`: `log_probability` where it can be read, else
    `contains`."""
    max_answer_tokens: int = Field(default=32, ge=1, le=256)
    """Of a written reply."""
    smallest_effect: float = Field(default=0.05, gt=0, lt=1)
    """d: the smallest difference in score that would matter to you. .05 is five more right answers
    in a hundred."""
    a_a: bool = True
    """Read the reference order again: an experiment of an order against itself must find
    nothing."""
    closed_book: bool = True
    """Ask without chunks: what the model knows by itself."""
    budget: ExperimentBudget = ExperimentBudget()
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    dry_run: bool = False
    """Answer with the estimate alone."""
    priority: Literal["normal", "high"] = "normal"

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Self:
        if len(set(self.orders)) != len(self.orders):
            raise ValueError("`orders` names one twice")
        if len(self.arms) < 2:
            raise ValueError("`orders`: name an order other than the `reference`")
        if self.model.startswith("preset:"):
            raise ValueError("`model`: a preset has no trained weights and answers nothing")
        self._curve_fits_the_orders()
        chunks = sum(len(question.chunks) for question in self.questions)
        if chunks > MAX_ALL_CHUNKS:
            raise ValueError(f"`questions` have {chunks:,} chunks, the limit is {MAX_ALL_CHUNKS:,}")
        names = self.question_ids
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            raise ValueError(f"`questions`: the id {twice!r} repeats")
        if self.scoring == "regex":
            self._patterns_are_valid()
        return self

    def _curve_fits_the_orders(self) -> None:
        named = [name for name in self.arms if name in CURVE_ORDERS]
        if self.profile_id is not None and self.density is not None:
            raise ValueError("give `profile_id` or `density`, not both")
        given = self.profile_id is not None or self.density is not None
        if named and not given:
            raise ValueError(f"the order `{named[0]}` needs `profile_id` or `density`")
        if given and not named:
            raise ValueError("`profile_id` and `density` go with the orders advised and optimal")
        if self.source is not None and self.profile_id is None:
            raise ValueError("`source` goes with `profile_id`")
        if self.density is not None and not any(self.density):
            raise ValueError("`density` is zero everywhere")

    def _patterns_are_valid(self) -> None:
        for name, question in zip(self.question_ids, self.questions, strict=True):
            for answer in question.answers:
                try:
                    re.compile(answer)
                except (re.error, OverflowError, RecursionError) as error:
                    raise ValueError(
                        f"`answers` of the question {name!r}: not a regular expression: {error}"
                    ) from None

    @property
    def arms(self) -> list[OrderName]:
        """The orders that are read, the reference first."""
        return [self.reference, *(name for name in self.orders if name != self.reference)]

    @property
    def question_ids(self) -> list[str]:
        """The id of each question; its number where it has none."""
        return [question.id or str(at) for at, question in enumerate(self.questions, 1)]

    @property
    def endpoint(self) -> str | None:
        """Name of the endpoint; null for weights."""
        prefix, _, name = self.model.partition(":")
        return name if prefix == "endpoint" else None

    @property
    def confidential(self) -> bool:
        """Always: it holds texts of the caller's own."""
        return True

    def loading(self) -> ProfileRequest:
        """A request that loads the same weights.

        Raises:
            ValueError: the model is an endpoint.
        """
        return ProfileRequest(model=self.model, revision=self.revision, dtype=self.dtype)

    def identity(self) -> dict[str, Any]:
        """The method, and every field that changes the result; texts enter as a digest."""
        out = {"priority", "dry_run", "questions", "template", "orders", "density"}
        fields = self.model_dump(mode="json", exclude=out)
        return fields | {
            "kind": "experiment",
            "method": EXPERIMENT_METHOD_VERSION,
            "orders": self.arms,
            "questions": self.questions_digest,
            "template": self.template_digest,
            "density": None if self.density is None else digest(self.density),
        }

    @property
    def questions_digest(self) -> str:
        """Digest of all questions with their chunks and answers."""
        return digest([question.model_dump(mode="json") for question in self.questions])

    @property
    def template_digest(self) -> str:
        """Digest of the template."""
        return digest(self.template.model_dump(mode="json"))

    @property
    def job_id(self) -> str:
        """Content address of the canonical request."""
        return digest(self.identity())


class ExperimentEstimate(Wire):
    """What an experiment takes at most, before it runs. Tokens are counted as four characters
    each."""

    questions: int
    prompts: int
    """Questions x orders, with the controls. Orders that give one prompt are read once."""
    prompt_tokens: int
    generated_tokens: int
    calls: int | None
    """Requests to an endpoint, with those that count tokens; null for weights."""
    multiply_adds: Rounded | None
    """Of a model by weights; null where its size is not known, and for an endpoint."""
    cost: Rounded | None = None
    """At the endpoint's prices; null where they are not known here."""
    minutes: Rounded | None = None
    warnings: list[str] = Field(default=[])
    """What makes a result doubtful, as far as the questions alone tell."""


ENDPOINT_CALLS = 64
"""Calls that finding out how an endpoint can be read takes at most, and the one at the end."""
ENDPOINT_TOKENS = 6_500
"""Prompt tokens of those calls."""


def prompts(request: ExperimentRequest) -> int:
    """Prompts that are read at most."""
    controls = int(request.a_a) + int(request.closed_book)
    return len(request.questions) * (len(request.arms) + controls)


def prompt_tokens(request: ExperimentRequest) -> int:
    """Tokens of all those prompts with the answers, by their characters."""
    template = request.template
    own = len(template.jinja or template.instructions) + len(template.system or "")
    own += len(template.answer)
    each = len(template.chunk) + len(template.separator)
    full = len(request.arms) + int(request.a_a)
    characters = 0
    for question in request.questions:
        asked = len(question.question) * (2 if template.question == "both" else 1)
        asked += max(map(len, question.answers))
        chunks = sum(len(chunk.text) + each for chunk in question.chunks)
        characters += full * (own + asked + chunks) + int(request.closed_book) * (own + asked)
    return int(characters / CHARACTERS_PER_TOKEN) + CHAT_TOKENS * prompts(request)


def experiment_cost(request: ExperimentRequest, layers: int, width: int) -> float:
    """What a request costs at most with a model by weights, in multiply-adds, as
    `profile_requests.cost` counts them: one forward pass a prompt. Writing a reply takes one more
    pass a token, over that token alone.

    Args:
        layers: of the model.
        width: of its residual stream.
    """
    count, tokens = prompts(request), prompt_tokens(request)
    length = -(-tokens // count)
    written = 0 if request.scoring in ("auto", "log_probability") else request.max_answer_tokens
    return count * forward_cost(layers, width, length + written)


def estimate(
    request: ExperimentRequest, layers: int | None = None, width: int | None = None
) -> ExperimentEstimate:
    """What a request takes at most.

    Args:
        layers: of a model by weights, if known.
        width: the same.
    """
    count, tokens = prompts(request), prompt_tokens(request)
    endpoint = request.endpoint is not None
    text = request.scoring not in ("auto", "log_probability")
    written = request.max_answer_tokens if text else int(endpoint)
    known = not endpoint and layers is not None and width is not None
    return ExperimentEstimate(
        questions=len(request.questions),
        prompts=count,
        prompt_tokens=tokens + (ENDPOINT_TOKENS if endpoint else 0),
        generated_tokens=count * written,
        calls=count + 2 * len(request.questions) + ENDPOINT_CALLS if endpoint else None,
        multiply_adds=experiment_cost(request, layers or 0, width or 0) if known else None,
    )
