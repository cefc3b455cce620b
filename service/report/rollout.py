"""A rollout: what theory says of an architecture."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from service.contract.rollouts import RolloutResponse
from service.render.terminal import bars, side_by_side
from service.report.text import clean, counted, number, zone

_TELLING = ("second_moment", "measured_kernel", "residual_content", "residual")
"""Predictions whose curve is drawn large, the one that uses most of the request first."""


def report(console: Console, answer: RolloutResponse) -> None:
    """Print an answer."""
    width = min(console.width, 100)
    console.print(_predictions(answer))
    name = _drawn(answer)
    drawn = answer.predictions[name]
    console.print(f"{name}:")
    console.print(bars(drawn.influence, answer.sequence_length, drawn.dead_zone, width))
    if len(answer.predictions) > 1:
        curves = {name: drawn.influence}
        curves |= {n: p.influence for n, p in answer.predictions.items()}
        console.print(f"\n{side_by_side(curves, answer.sequence_length, width)}")
    console.print(_forces(answer))
    console.print(f"depth: {answer.collapse.verdict}", soft_wrap=True)
    console.print(answer.collapse.evidence, soft_wrap=True)
    for sentence in answer.summary:
        console.print(sentence, soft_wrap=True)
    for assumption in answer.assumptions:
        console.print(f"assumed: {assumption}", soft_wrap=True)


def _drawn(answer: RolloutResponse) -> str:
    known = answer.predictions
    if "residual" in known and known.get("residual_content") == known["residual"]:
        return "residual"
    return next((name for name in _TELLING if name in known), next(iter(known)))


def _predictions(answer: RolloutResponse) -> Table:
    named = f"{clean(answer.architecture)}: " if answer.architecture else ""
    sizes = (answer.layers, "layer"), (answer.heads, "head"), (answer.sequence_length, "token")
    table = Table(title=named + ", ".join(counted(*size) for size in sizes))
    table.add_column("prediction", no_wrap=True)
    table.add_column("dead zone", justify="right", no_wrap=True)
    table.add_column("primacy", justify="right")
    table.add_column("recency", justify="right")
    table.add_column("shape")
    for name, prediction in answer.predictions.items():
        shape = prediction.shape
        table.add_row(
            name,
            zone(prediction.dead_zone),
            number(shape.primacy_mass),
            number(shape.recency_mass),
            shape.class_,
        )
    return table


def _forces(answer: RolloutResponse) -> Table:
    table = Table(title="what each ingredient does to the mean position")
    table.add_column("ingredient")
    for name in ("shift", "mean position", "primacy", "recency"):
        table.add_column(name, justify="right")
    for force in answer.forces:
        table.add_row(
            force.name,
            f"{force.shift:+.4f}",
            number(force.mean_position),
            number(force.primacy_mass),
            number(force.recency_mass),
        )
    return table
