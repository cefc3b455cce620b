"""Panics of Rust libraries, which reach Python as exceptions outside the tree of `Exception`.

`tokenizers` panics where its regular expressions give up. Without care that ends a worker or a
request although only one text is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lacuna.contract.errors import LacunaError


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic; its class cannot be imported."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


@contextmanager
def failures_as(refusal: Callable[[str], LacunaError]) -> Iterator[None]:
    """Raise `refusal(reason)` for panics and for exceptions that say no more than their wording.

    Lacuna's own errors and a shortage of memory pass through.

    Args:
        refusal: makes the error that the caller sees, of one line of at most 200 characters.
    """
    try:
        yield
    except (LacunaError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise refusal(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """The first line of an exception's message, at most 200 characters, or the name of its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
