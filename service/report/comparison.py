"""Two profiles beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from service.contract.views import Comparison
from service.render.terminal import side_by_side
from service.report.text import clean, counted, number, zone


def report(console: Console, answer: Comparison, a: Sequence[float], b: Sequence[float]) -> None:
    """Print an answer and the two curves.

    Args:
        a: masses that sum to 1.
        b: likewise, of any length.
    """
    for name, side in (("A", answer.a), ("B", answer.b)):
        facts = f"{clean(side.model)}, {side.weights}, {counted(side.sequence_length, 'token')}"
        console.print(f"{name}: {side.id}, {facts}", soft_wrap=True)
    console.print(_table(answer))
    console.print(_distance(answer), soft_wrap=True)
    for warning in answer.warnings:
        console.print(f"note: {clean(warning)}", soft_wrap=True)
    tokens = max(answer.a.sequence_length, answer.b.sequence_length)
    console.print(side_by_side({"A": a, "B": b}, tokens, min(console.width, 100)))


def _table(answer: Comparison) -> Table:
    a, b, moved = answer.a, answer.b, answer.dead_zone_change
    table = Table(title=f"{answer.source}, B against A")
    table.add_column("")
    for name in ("A", "B", "change"):
        table.add_column(name, justify="right")
    table.add_row("shape", a.shape, b.shape, "")
    table.add_row(
        "primacy mass", number(a.primacy_mass), number(b.primacy_mass),
        f"{answer.primacy_change:+.4f}",
    )  # fmt: skip
    table.add_row(
        "recency mass", number(a.recency_mass), number(b.recency_mass),
        f"{answer.recency_change:+.4f}",
    )  # fmt: skip
    share = "" if moved is None else f"{100 * moved.fraction:+.1f} points"
    table.add_row("dead zone", zone(a.dead_zone), zone(b.dead_zone), share)
    inside = ["-" if z is None else number(z.mean_density) for z in (a.dead_zone, b.dead_zone)]
    change = "" if moved is None else f"{moved.mean_density:+.4f}"
    table.add_row("mean density inside", *inside, change)
    return table


def _distance(answer: Comparison) -> str:
    rank = "" if answer.spearman is None else f", Spearman {answer.spearman:.3f}"
    text = f"distance: {answer.wasserstein:.4f} (Wasserstein){rank}"
    if answer.noise_a is None or answer.noise_b is None:
        return f"{text}; the noise of a profile of one document is unknown"
    text += f"; noise of A {answer.noise_a:.4f}, of B {answer.noise_b:.4f}"
    if answer.wasserstein <= max(answer.noise_a, answer.noise_b):
        text += ": not to be told from noise"
    return text
