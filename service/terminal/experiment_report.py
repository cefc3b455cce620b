"""An experiment in the terminal: the verdict, the orders as a table, and what bounds them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lacuna.contract.experiment_requests import ExperimentEstimate
from lacuna.contract.experiments import (
    ExperimentOrder,
    ExperimentResult,
    RecallByPlace,
)
from service.terminal.reports import bar, clean, counted, number

_WORDS = {
    "given": "given",
    "relevance_first": "most relevant first",
    "relevance_last": "most relevant last",
    "zigzag_best_first": "zigzag, best first",
    "zigzag_best_last": "zigzag, best last",
    "document_order": "document order",
    "random_again": "random, another draw",
}
_SCORES = {
    "log_probability": "score: probability of the right answer",
    "contains": "score: share of replies that hold an accepted answer",
    "exact": "score: share of replies that are an accepted answer",
    "regex": "score: share of replies that match",
}


def experiment_report(console: Console, found: ExperimentResult) -> None:
    """Print what an experiment found."""
    console.print(_orders(found))
    for line in _sentences(found):
        console.print(line, soft_wrap=True)


def estimate_report(found: ExperimentEstimate) -> list[str]:
    """What an experiment will take, in lines."""
    lines = [
        f"{counted(found.questions, 'question')}, at most {found.prompts:,} prompts with about "
        f"{found.prompt_tokens:,} tokens"
    ]
    if found.generated_tokens:
        lines.append(f"at most {found.generated_tokens:,} tokens are written")
    if found.calls is not None:
        lines.append(f"at most {found.calls:,} calls of the endpoint")
    if found.multiply_adds is not None:
        lines.append(f"about {found.multiply_adds:.2g} multiply-adds")
    if found.cost is not None:
        lines.append(f"cost: at most {found.cost:.4g}, at the endpoint's prices")
    if found.minutes is not None:
        lines.append(f"about {_minutes(found.minutes)}")
    return lines


def _minutes(minutes: float) -> str:
    return f"{minutes * 60:.0f} seconds" if minutes < 2 else f"{minutes:.0f} minutes"


def _orders(found: ExperimentResult) -> Table:
    title = f"{clean(found.model)}: {counted(found.questions, 'question')}"
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("order", no_wrap=True)
    for name in ("score", "difference", "95%, all orders", "p", "flips", "nats"):
        table.add_column(name, justify="right", no_wrap=True)
    for order in found.orders:
        table.add_row(*_cells(order, found))
    return table


def _cells(order: ExperimentOrder, found: ExperimentResult) -> list[str]:
    name = clean(_WORDS.get(order.name, order.name.replace("_", " ")))
    score = f"{order.mean:.3f}"
    if order.name == found.reference:
        return [name, score, "reference", "", "", "", ""]
    nats = order.log_difference
    joint = f"{order.joint_low:+.3f} to {order.joint_high:+.3f}"
    return [
        name,
        score,
        f"{order.difference.value:+.3f}",
        joint,
        number(order.p),
        f"{order.flips:.0%}",
        "" if nats is None else f"{nats.value:+.2f}",
    ]


def _sentences(found: ExperimentResult) -> Iterator[str]:
    yield f"verdict: {clean(found.verdict.words)}"
    yield f"{_SCORES[found.scoring]}; difference: less the reference's on the same questions"
    effect = found.minimum_detectable_effect
    if effect is not None:
        yield (
            f"this experiment finds a difference of {effect:.3f} four times in five; "
            f"{found.smallest_effect:g} or more matters to you"
        )
    yield from _controls(found)
    if found.recall_by_place is not None:
        yield "score by the place of the chunk with the answer, first to last:"
        yield from _places(found.recall_by_place)
    if found.calibration is not None:
        yield "calibration of the scores: in the result (--output FILE), for `lacuna place`"
    elif found.calibration_note is not None:
        yield f"no calibration of the scores: {clean(found.calibration_note)}"
    usage = found.usage
    spent = f"read: {usage.prompts:,} prompts, {usage.prompt_tokens:,} tokens"
    yield spent if usage.cost is None else f"{spent}, cost {usage.cost:.4g}"
    if found.lost:
        yield f"left out: {counted(found.lost, 'question')} that not every order answered"
    for warning in found.warnings:
        yield f"note: {clean(warning)}"


def _controls(found: ExperimentResult) -> Iterator[str]:
    same, closed = found.controls.a_a, found.controls.closed_book
    if same is not None:
        gap = same.difference
        words = f"{gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"
        said = "a difference that is none: trust no verdict" if same.found else "as it must be"
        yield f"control, the reference against itself: {words}, {said}"
    if closed is not None:
        yield f"control, without chunks: {closed:.3f}"


def _places(found: RecallByPlace) -> Iterator[str]:
    most = max(found.value) or 1.0
    rows = zip(found.depth, found.value, found.low, found.high, found.readings, strict=True)
    for depth, value, low, high, readings in rows:
        yield (
            f"  {depth:4.0%}  {value:.3f} ({low:.3f} to {high:.3f}) {bar(value / most, 16):16} "
            f"{readings:,} readings"
        )
