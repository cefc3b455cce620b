"""Recall by depth: the curve of a profile (`profile_requests` has how to ask for it).

Influence says how strongly an answer reacts to a place of the prompt; recall says how often the
answer is right when the fact stands there.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lacuna.contract.base import Fraction, Wire
from lacuna.contract.endpoints import Form, Rung
from lacuna.contract.errors import InvalidRequest

Probe = Literal["facts", "pairs", "paraphrase", "documents"]
QuestionPlace = Literal["last", "first", "both"]
LEAST_GROUPS = 16
"""Groups below which neither a verdict nor a band has the error rate that it states."""
MOST_GROUPS = 48
"""Groups that `auto` reads at most."""


class RecallEcho(Wire):
    """The request for recall as it was resolved, without the caller's passages."""

    probes: list[Probe]
    groups_asked: int | Literal["auto"]
    depths: int
    form: Literal["auto", "plain", "chat"]
    question: QuestionPlace
    scoring: Literal["probability", "text"] = "probability"
    passages_digest: str | None


RecallVerdict = Literal["varies", "flat", "undecided", "floor", "ceiling"]
"""Whether recall depends on depth. `varies`: the test says so. Otherwise `floor`: the model does
not recall the facts, wherever they stand; `ceiling`: nearly always, wherever they stand; `flat`:
every depth is within .05 of the mean, with 95% confidence; `undecided`: more groups may tell."""


class RecallControls(Wire):
    """The same questions under conditions that bound what depth can show: mean probabilities."""

    closed_book: Fraction
    """Without any context. Recall near this says nothing about the context."""
    oracle: Fraction
    """With the fact alone as context: the most that can be expected."""
    repeat: float | None
    """Mean absolute difference between two readings of the same prompts; 0 for weights, more for a
    server that answers the same prompt in several ways."""


class Agreement(Wire):
    """A rank correlation with its 95% interval."""

    value: float = Field(ge=-1, le=1)
    low: float = Field(ge=-1, le=1)
    high: float = Field(ge=-1, le=1)


class RecallSampling(Wire):
    """Why no more groups were read, and what more would buy.

    Widths are the largest half-width of the band of differences between depths.
    """

    reason: Literal["narrow", "budget", "exhausted", "fixed"]
    """`narrow`: at most `target` at two looks running. `budget`: 48 groups are read. `exhausted`:
    the passages give no more. `fixed`: the request names a number."""
    half_width: float | None
    target: float
    at_double: float | None
    """What twice the groups would give."""
    needed: int | None
    """About how many groups `target` takes."""


class RecallCurve(Wire):
    """Expected probability of a right answer by where the fact stood. Lists are by depth, the start
    of the prompt first."""

    depth: list[Fraction]
    """Where the facts begin, as a share of the prompt."""
    position: list[float]
    """The same in tokens, beginning of text and chat template included; mean over facts."""
    prompt_tokens: float
    """Mean length of the prompts, answer included."""
    probability: list[Fraction]
    """Mean of exp(log p) over facts, and not exp of the mean of log p, which is lower."""
    low: list[Fraction] | None
    """`low` and `high` are the 95% band of `probability` at each depth by itself: which level it
    has. Null below 16 groups."""
    high: list[Fraction] | None
    simultaneous_low: list[Fraction] | None
    """`simultaneous_low` and `simultaneous_high` are the 95% band of the shape, at all depths
    together: how far each depth is from the mean over depths, which is held fixed. Facts differ
    more than depths do, so this band is narrower: compare depths by it."""
    simultaneous_high: list[Fraction] | None
    log_probability: list[float] | None
    """Mean of log p in nats; null where texts were compared."""
    by_group: list[list[Fraction]]
    """`probability` of each group by depth. Groups are what is drawn independently; the same
    request gives the same groups to another model, so that two models are compared in pairs."""
    groups: int
    facts: int
    """Competing facts in each prompt."""
    sampling: RecallSampling
    controls: RecallControls
    verdict: RecallVerdict
    p: Fraction | None
    """Of the paired test of "no trend over depth", made once, after the last group."""
    alpha: Fraction
    """Its level: `varies` is wrong in at most 5% of cases at this nominal level."""
    spread: float
    """Largest less smallest `probability`."""
    rung: Rung
    """What was read: log p of the whole answer, log p of its first token, or the text itself."""
    reader: Literal["weights", "endpoint"]
    form: Form
    """`plain`: one text. `chat`: a user's message. `continued`: by the chat template, with the
    beginning of the reply given."""
    question: QuestionPlace
    spearman_with_influence: Agreement | None
    """Rank agreement of `probability` and `influence_density` over depths; null below 32 groups."""
    influence_density: list[float] | None
    """Mean density of the profile's influence over the tokens of the facts where they stood; 1 is
    an even share."""


PROBES_BY_WORTH: tuple[Probe, ...] = ("documents", "facts", "paraphrase", "pairs")
"""Probes, the most telling first: the caller's own questions."""


def main_recall(found: dict[str, RecallCurve] | None) -> RecallCurve | None:
    """The curve that stands for the recall of a profile: of the most telling probe."""
    known = found or {}
    return next((known[probe] for probe in PROBES_BY_WORTH if probe in known), None)


def recall_curves(found: dict[str, RecallCurve] | None) -> dict[str, RecallCurve]:
    """The recall of a profile by probe, to be shown.

    Raises:
        InvalidRequest: recall was not measured.
    """
    if found is None:
        raise InvalidRequest(
            "`curve`: recall was not measured for this profile; ask for a profile with `recall`",
            field="curve",
        )
    return found
