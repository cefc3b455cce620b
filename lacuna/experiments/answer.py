"""From scores by question and order to the result of an experiment: statistics, and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lacuna.contract.base import rounded_tree
from lacuna.contract.calibrations import Calibration
from lacuna.contract.endpoints import Form, Rung
from lacuna.contract.experiment_requests import (
    EXPERIMENT_METHOD_VERSION,
    LEAST_QUESTIONS,
    ExperimentRequest,
    Scoring,
)
from lacuna.contract.experiments import (
    ExperimentControls,
    ExperimentOrder,
    ExperimentResult,
    ExperimentUsage,
    ExperimentVerdict,
    Interval,
    RecallByPlace,
    SameOrder,
)
from lacuna.evidence import arms
from lacuna.evidence.arms import Arm, Comparisons
from lacuna.experiments.doubts import few, without_answer
from lacuna.placement.score_calibration import fit

F64 = npt.NDArray[np.float64]

_FLOOR, _CEILING = 0.05, 0.95
_LOW = 3.0
"""Multiple of the smallest effect below which the best score leaves little room for it."""
_HELPS_LITTLE = 0.9
"""Share of the best order's mean score that closed book reaches: then the chunks hardly help."""


@dataclass(frozen=True, eq=False)
class Table:
    """What was read.

    Attributes:
        numbers: of the questions that were answered in every order, [n].
        scores: in [0, 1], [n, m], orders as in `ExperimentRequest.arms`.
        logs: log-probabilities, [n, m]; None where replies were compared.
        same: whether the prompt was the reference's, [n, m].
        depth: where the answer stands, 0 the first place, 1 the last, [n, m]; NaN where it stands
            in no chunk or in several.
        gold: whether each chunk of each question of the request holds the answer.
        lost: questions that were not answered in every order.
        again: the reference read once, and once more, [k, 2].
        closed_book: scores without chunks, [j].
    """

    numbers: tuple[int, ...]
    scores: F64
    logs: F64 | None
    same: npt.NDArray[np.bool_]
    depth: F64
    gold: Sequence[Sequence[bool]]
    lost: int = 0
    again: F64 | None = None
    closed_book: F64 | None = None


@dataclass(frozen=True)
class Origin:
    """How it was read."""

    scoring: Scoring
    rung: Rung
    form: Form
    revision: str | None
    usage: ExperimentUsage
    warnings: Sequence[str] = field(default=())


def summarise(request: ExperimentRequest, table: Table, origin: Origin) -> ExperimentResult:
    """The result of an experiment.

    Args:
        request: validated.
        table: of two questions at least.
        origin: how the table was read.
    """
    hits = origin.rung == "text"
    found = arms.compare_arms(table.scores, hits=hits, same=table.same, seed=request.seed)
    controls = _controls(request, table, hits=hits)
    calibration, why_none = _calibration(request, table.gold)
    result = ExperimentResult(
        id=request.job_id,
        model=request.model,
        revision=origin.revision,
        method=EXPERIMENT_METHOD_VERSION,
        questions_digest=request.questions_digest,
        template_digest=request.template_digest,
        questions=found.questions,
        lost=table.lost,
        seed=request.seed,
        relevance_scale=request.relevance_scale,
        scoring=origin.scoring,
        rung=origin.rung,
        form=origin.form,
        reference=request.reference,
        orders=[_order(request, at, arm, table.logs) for at, arm in enumerate(found.arms)],
        verdict=_verdict(request, found),
        smallest_effect=request.smallest_effect,
        minimum_detectable_effect=found.detectable,
        controls=controls,
        gold_known=sum(map(any, table.gold)),
        calibration=calibration,
        calibration_note=why_none,
        recall_by_place=_by_place(table),
        usage=origin.usage,
        warnings=[
            *origin.warnings,
            *_warnings(request, table, found, controls),
            *(few(found.questions) if found.detectable is not None else []),
            *without_answer(request, origin.scoring),
        ],
    )
    return ExperimentResult.model_validate(rounded_tree(result.model_dump()))


def _order(request: ExperimentRequest, at: int, arm: Arm, logs: F64 | None) -> ExperimentOrder:
    return ExperimentOrder(
        name=request.arms[at],
        mean=arm.mean.value,
        low=arm.mean.low,
        high=arm.mean.high,
        log_probability=None if logs is None else float(logs[:, at].mean()),
        difference=_interval(arm.difference),
        log_difference=None if logs is None else _interval(arms.t_interval(_moved(logs, at))),
        joint_low=arm.joint.low,
        joint_high=arm.joint.high,
        p=arm.p,
        flips=arm.flips,
        changed=arm.changed,
    )


def _moved(logs: F64, at: int) -> F64:
    return np.asarray(logs[:, at] - logs[:, 0])


def _interval(found: arms.Interval) -> Interval:
    return Interval(value=found.value, low=found.low, high=found.high)


# What to do


def _verdict(request: ExperimentRequest, found: Comparisons) -> ExperimentVerdict:
    made = arms.decide(found, request.smallest_effect)
    names, d = request.arms, request.smallest_effect
    if (why := _cannot_tell(found, made, d)) is not None:
        return ExperimentVerdict(
            decision="not_enough", order=None, words=f"Nothing can be told: {why}.",
            more_questions=None,
        )  # fmt: skip
    words = {
        "use": _use,
        "no_difference": _no_difference,
        "not_enough": _not_enough,
    }[made.decision](names, found, made, d)
    return ExperimentVerdict(
        decision=made.decision,
        order=None if made.arm is None else names[made.arm],
        words=words,
        more_questions=made.more,
    )


def _cannot_tell(found: Comparisons, made: arms.Verdict, d: float) -> str | None:
    """Why no number of such questions would decide; None if they could.

    Scores that are all smaller than `d` differ by less than `d` whatever an order does: that is
    no evidence that order makes no difference.
    """
    if found.detectable is None or made.decision == "use":
        return None
    if not any(arm.changed for arm in found.arms):
        return "no order changes a single prompt"
    best = max(arm.mean.value for arm in found.arms)
    if best >= d:
        return None
    return (
        f"no order scores more than {best:.3f}, and {d:g} is the smallest difference that matters "
        "to you. A model that answers almost nothing cannot show whether order matters"
    )


def _use(names: Sequence[str], found: Comparisons, made: arms.Verdict, d: float) -> str:
    best = made.arm or 0
    if best == 0:
        worst = min(range(1, len(names)), key=lambda at: found.arms[at].difference.value)
        less = -found.arms[worst].difference.value
        return (
            f"Keep {names[0]}: no other order scores {d:g} more, and {names[worst]} scores "
            f"{less:.3f} less."
        )
    arm = found.arms[best]
    also = [names[at] for at in range(1, len(names)) if at != best and found.arms[at].joint.low > 0]
    more = f" Also better than {names[0]}: {', '.join(also)}." if also else ""
    return (
        f"Use {names[best]}: it scores {arm.difference.value:.3f} more than {names[0]} (95% "
        f"interval for all orders together {arm.joint.low:.3f} to {arm.joint.high:.3f})."
        f"{_matters(arm, d)}{more}"
    )


def _matters(arm: Arm, d: float) -> str:
    """Whether a gain that is surely above zero is as large as what matters."""
    if arm.joint.low >= d:
        return ""
    if arm.joint.high < d:
        return f" It is surely better, but by less than the {d:g} that matters to you."
    return f" It is surely better, but perhaps by less than the {d:g} that matters to you."


def _no_difference(names: Sequence[str], found: Comparisons, made: arms.Verdict, d: float) -> str:
    ends = [max(-arm.joint.low, arm.joint.high) for arm in found.arms]
    return (
        f"It makes no difference (less than {d:g}): with 95% confidence every order scores within "
        f"{max(ends):z.3f} of {names[0]}."
    )


def _not_enough(names: Sequence[str], found: Comparisons, made: arms.Verdict, d: float) -> str:
    more = f"Not enough questions: about {made.more:,} more would tell"
    if found.detectable is None:
        return f"{more} something; nothing is claimed below {LEAST_QUESTIONS} questions."
    at = max(range(1, len(names)), key=lambda at: found.arms[at].difference.value)
    arm = found.arms[at]
    return (
        f"{more} whether an order differs from {names[0]} by {d:g}. So far {names[at]} scores "
        f"{arm.difference.value:+z.3f} (95% interval for all orders together "
        f"{arm.joint.low:+z.3f} to {arm.joint.high:+z.3f})."
    )


# Controls


def _controls(request: ExperimentRequest, table: Table, *, hits: bool) -> ExperimentControls:
    closed = table.closed_book
    same, repeat = None, None
    if table.again is not None and len(table.again) >= 2:
        again = table.again
        pair = arms.compare_arms(again, hits=hits, same=_equal(again), seed=request.seed).arms[1]
        same = SameOrder(
            difference=_interval(pair.difference),
            questions=len(again),
            found=pair.p <= arms.ALPHA,
        )
        repeat = float(np.abs(again[:, 1] - again[:, 0]).mean())
    return ExperimentControls(
        a_a=same,
        closed_book=None if closed is None or not len(closed) else float(closed.mean()),
        repeat=repeat,
    )


def _equal(again: F64) -> npt.NDArray[np.bool_] | None:
    """The same prompt that always gave the same score cannot differ."""
    equal = np.isclose(again[:, 0], again[:, 1], rtol=0, atol=1e-9)
    return np.ones(again.shape, dtype=bool) if equal.all() else None


def _warnings(
    request: ExperimentRequest, table: Table, found: Comparisons, controls: ExperimentControls
) -> list[str]:
    said = []
    best = max(arm.mean.value for arm in found.arms)
    closed = controls.closed_book
    if closed is not None and best > _FLOOR and closed >= _HELPS_LITTLE * best:
        said.append(
            f"without any chunk the score is {closed:.3f}, with them {best:.3f} at best: these "
            "questions hardly need their chunks, so that no order can matter"
        )
    undecided = _verdict(request, found).decision != "use"
    if undecided and best < _LOW * request.smallest_effect:
        said.append(
            f"no order scores more than {best:.3f}, so that a difference of "
            f"{request.smallest_effect:g} could hardly show: look at `log_difference`, ask for a "
            "smaller `smallest_effect`, or let the template show how to answer in a few words"
        )
    elif best < _FLOOR:
        said.append(f"no order scores more than {best:.3f}: the model rarely answers at all")
    if min(arm.mean.value for arm in found.arms) > _CEILING:
        said.append("every order scores above 0.95: these questions are too easy to tell orders by")
    if controls.a_a is not None and controls.a_a.found:
        said.append(
            "the same order read twice seems to differ, which happens by chance in 5% of "
            "experiments: if it happens again, the endpoint answers unevenly"
        )
    if table.lost:
        said.append(f"{table.lost} questions were not answered in every order and are left out")
    for name, arm in zip(request.arms[1:], found.arms[1:], strict=True):
        if not arm.changed:
            said.append(f"{name} gives the same prompts as {request.reference}")
    return said


# What else the labels give


def _calibration(
    request: ExperimentRequest, gold: Sequence[Sequence[bool]]
) -> tuple[Calibration | None, str | None]:
    scores, labels, asked = [], [], []
    for number, (question, marks) in enumerate(zip(request.questions, gold, strict=True)):
        for chunk, holds in zip(question.chunks, marks, strict=True):
            scores.append(chunk.score)
            labels.append(holds)
            asked.append(number)
    try:
        found = fit(
            np.array(scores, dtype=np.float64),
            np.array(labels),
            np.array(asked),
            higher_is_better=request.relevance_scale not in ("distance", "rank"),
        )
    except ValueError as error:
        return None, str(error)
    wire = found.to_dict()
    return Calibration.model_validate({**wire, "x": list(wire["x"]), "y": list(wire["y"])}), None


def _by_place(table: Table) -> RecallByPlace | None:
    known = ~np.isnan(table.depth).any(axis=1)
    if not known.any():
        return None
    found = arms.by_place(table.depth[known], table.scores[known])
    if found is None:
        return None
    return RecallByPlace(
        depth=found.depth.tolist(),
        value=found.value.tolist(),
        low=found.low.tolist(),
        high=found.high.tolist(),
        readings=found.readings.tolist(),
        questions=found.questions,
    )
