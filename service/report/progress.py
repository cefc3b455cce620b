"""Progress while a profile is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from service.contract.jobs import Job
from service.report.text import clean


@contextmanager
def progress(console: Console, title: str) -> Iterator[Callable[[Job], None]]:
    """A progress bar, drawn in terminals alone; yields what moves it."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}% {task.fields[message]}", markup=False),
        TimeElapsedColumn(),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(clean(title), total=1.0, message="")

        def show(job: Job) -> None:
            bar.update(task, completed=job.progress, message=standing(job))

        yield show


def standing(job: Job) -> str:
    """How a job stands, in a few words."""
    words: list[str] = [job.state]
    if job.message and job.message != job.state:
        words.append(job.message)
    if job.state == "queued" and job.position:
        words.append(f"{job.position} before it")
    if job.eta_seconds is not None:
        words.append(f"about {max(1, round(job.eta_seconds))} s left")
    return clean(", ".join(words))
