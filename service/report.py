"""A profile in the terminal: progress while it is made, then a table and a chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from service.contract.jobs import Job
from service.contract.profiles import Profile
from service.render.terminal import chart


@contextmanager
def progress(console: Console, title: str) -> Iterator[Callable[[Job], None]]:
    """A progress bar; yields what moves it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}% {task.fields[message]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0, message="")

        def show(job: Job) -> None:
            bar.update(task, completed=job.progress, message=job.message or job.state)

        yield show


def report(console: Console, document: dict[str, Any]) -> None:
    """Print the numbers that matter and the curve."""
    profile = Profile.model_validate(document, strict=False)
    console.print(_facts(profile))
    if profile.predictions:
        console.print(_agreement(profile))
        console.print(_closest(profile), highlight=False)
    console.print(chart(profile, width=min(console.width, 100)), highlight=False)
    for warning in profile.warnings:
        console.print(f"note: {warning}", highlight=False, markup=False)


def _facts(profile: Profile) -> Table:
    table = Table(title=f"{profile.model.id}, {profile.request.sequence_length} tokens")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    measured = profile.measured
    table.add_row("documents", str(measured.documents))
    if profile.mixing is not None:
        table.add_row("lambda, sum over layers", f"{profile.mixing.sum:.3f}")
    zone = profile.dead_zone
    if zone is None:
        table.add_row("dead zone", "none")
    else:
        table.add_row("dead zone (tokens)", f"{zone.start}-{zone.end} ({zone.fraction:.0%})")
        if zone.start_band is not None and zone.end_band is not None:
            low, high = zone.start_band, zone.end_band
            table.add_row(
                "its 95% band", f"{low.low:.0f}..{low.high:.0f} - {high.low:.0f}..{high.high:.0f}"
            )
        table.add_row("mean density inside", f"{zone.mean_density:.3f}")
    table.add_row("primacy mass (first 10%)", f"{profile.shape.primacy_mass:.3f}")
    table.add_row("recency mass (last 10%)", f"{profile.shape.recency_mass:.3f}")
    table.add_row("shape", profile.shape.class_)
    if measured.split_half_wasserstein is not None:
        table.add_row("noise: W1 of two halves", f"{measured.split_half_wasserstein:.4f}")
    return table


def _agreement(profile: Profile) -> Table:
    table = Table(title="prediction against measurement")
    table.add_column("prediction")
    table.add_column("Wasserstein", justify="right")
    table.add_column("Spearman", justify="right")
    for name, prediction in profile.predictions.items():
        rank = "-" if prediction.spearman is None else f"{prediction.spearman:.3f}"
        table.add_row(name, f"{prediction.wasserstein:.4f}", rank)
    return table


def _closest(profile: Profile) -> str:
    """What the table says, in a sentence."""
    name, best = min(profile.predictions.items(), key=lambda item: item[1].wasserstein)
    noise = profile.measured.split_half_wasserstein
    text = f"closest: {name}, {best.wasserstein:.4f}"
    if noise is None:
        return text
    if best.wasserstein <= noise:
        text += f", not to be told from the measurement's own noise ({noise:.4f})"
    missed = sum(
        p.wasserstein > max(10 * best.wasserstein, noise) for p in profile.predictions.values()
    )
    return f"{text}; {missed} of the others miss this model" if missed else text
