"""What an experiment found: orders of chunks compared on the user's own questions, in pairs.

`experiment_requests` has what is asked. Scores lie in [0, 1]: the probability of the right answer,
or 1 for a right reply and 0 for a wrong one.
"""

from __future__ import annotations

from typing import Literal

from lacuna.contract.base import Digest, Fraction, Rounded, Wire
from lacuna.contract.calibrations import Calibration, RelevanceScale
from lacuna.contract.endpoints import Form, Rung
from lacuna.contract.experiment_requests import OrderName, Scoring

ExperimentDecision = Literal["use", "no_difference", "not_enough"]
ROW_COLUMNS = ("question", "arm", "place", "chunks", "score", "log_probability", "prompt_tokens")
"""Columns of the CSV, in its order."""


class Interval(Wire):
    """A number with its 95% interval."""

    value: Rounded
    low: Rounded
    high: Rounded


class ExperimentOrder(Wire):
    """One order over all questions."""

    name: OrderName
    mean: Rounded
    """Mean score."""
    low: Rounded
    """`low` and `high` are the 95% interval of `mean`. Questions differ more than orders do:
    compare orders by `difference`."""
    high: Rounded
    log_probability: Rounded | None
    """Mean log-probability of the answer in nats; null where replies were compared."""
    difference: Interval
    """Score less the reference's on the same questions, with a 95% interval for this order alone.
    Zero for the reference itself."""
    log_difference: Interval | None = None
    """The same for `log_probability`, in nats: it shows an effect where probabilities are small.
    Null where replies were compared."""
    joint_low: Rounded
    """`joint_low` and `joint_high` hold for all orders together, at 95%. The verdict uses them."""
    joint_high: Rounded
    p: Fraction
    """Of the paired test against the reference, corrected for the number of orders; 1 for the
    reference."""
    flips: Fraction
    """Share of questions that are right in one of the two orders and wrong in the other. A
    probability counts as right from 1/2 on."""
    changed: int
    """Questions whose prompt differs from the reference's; the others cannot differ in score."""


class ExperimentVerdict(Wire):
    """What to do."""

    decision: ExperimentDecision
    """`use`: one order is better than the reference, beyond chance; or the reference itself, since
    no order gains `smallest_effect` and some lose. `no_difference`: every order is within
    `smallest_effect` of the reference. `not_enough`: neither is certain, or these questions cannot
    tell: no order scores `smallest_effect`, or no order changes a prompt."""
    order: OrderName | None
    """Which order to use; null unless the decision is `use`."""
    words: str
    """One or two sentences."""
    more_questions: int | None
    """About how many more would decide. Null unless the decision is `not_enough`, and where more
    questions like these would not decide."""


class SameOrder(Wire):
    """The reference order against itself."""

    difference: Interval
    questions: int
    """Read twice. For weights a few are enough: the same prompt gives the same numbers."""
    found: bool
    """Whether it found a difference where there is none, beyond chance: then trust no verdict."""


class ExperimentControls(Wire):
    """What bounds the experiment."""

    a_a: SameOrder | None
    closed_book: Fraction | None
    """Mean score without any chunk. Where it is near the orders' means the chunks hardly help."""
    repeat: Rounded | None
    """Mean absolute difference of two readings of one prompt; 0 for weights."""


class RecallByPlace(Wire):
    """How the score depends on where the chunk with the answer stands.

    Each question is compared with itself over the orders; so questions do not enter, ranks do not
    either where `random` is among the orders. Lists are by place, the start of the chunks first.
    """

    depth: list[Fraction]
    """Middle of each bin of places; 0 is the first place, 1 the last."""
    value: list[Rounded]
    """Mean score. Pass it as `density` of POST /v1/placements to order chunks by it."""
    low: list[Rounded]
    high: list[Rounded]
    readings: list[int]
    """In each bin."""
    questions: int
    """With exactly one chunk that holds the answer, at different places in the orders."""


class ExperimentUsage(Wire):
    """What was spent."""

    prompts: int
    """Different prompts."""
    calls: int
    """Requests to the endpoint in all starts of the job; forward passes for weights."""
    replayed: int
    """Answers that an earlier start had paid for."""
    prompt_tokens: int
    generated_tokens: int | None
    """Null where nobody counted."""
    cost: Rounded | None
    """At the endpoint's prices; null for weights."""


class ExperimentResult(Wire):
    """The orders, what they score, and the verdict. It holds none of the texts."""

    id: Digest
    model: str
    revision: str | None
    """The commit or digest of the weights; for an endpoint the digest of what it answers to three
    fixed prompts."""
    method: str
    questions_digest: str
    template_digest: str
    questions: int
    """That were answered in every order; `lost` were not and are left out."""
    lost: int
    seed: int
    relevance_scale: RelevanceScale
    scoring: Scoring
    """As it was done, after `auto`."""
    rung: Rung
    """What was read: log p of the whole answer, of its only token, or the reply itself."""
    form: Form
    reference: OrderName
    orders: list[ExperimentOrder]
    """The reference first."""
    verdict: ExperimentVerdict
    smallest_effect: float
    minimum_detectable_effect: Rounded | None
    """The difference that this experiment finds with probability 80%, whichever order has it. Null
    below 12 questions."""
    controls: ExperimentControls
    gold_known: int
    """Questions with a chunk that holds the answer, as far as `gold` or the texts tell."""
    calibration: Calibration | None
    """From scores to probabilities, as POST /v1/calibrations fits it on these chunks."""
    calibration_note: str | None
    """Why there is no calibration."""
    recall_by_place: RecallByPlace | None
    """Null where too few questions have one chunk with the answer at different places."""
    usage: ExperimentUsage
    warnings: list[str]


class ExperimentRow(Wire):
    """One reading, a row of the CSV. It holds no text."""

    question: str
    """Its id."""
    arm: OrderName | Literal["a_a", "closed_book"]
    place: int | None
    """Of the first chunk that holds the answer, from 0; null if none does, and in closed book."""
    chunks: int
    score: Rounded
    log_probability: Rounded | None
    prompt_tokens: int

    def cells(self) -> list[str]:
        """The row of the CSV; empty for null."""
        values = (getattr(self, name) for name in ROW_COLUMNS)
        return ["" if value is None else str(value) for value in values]
