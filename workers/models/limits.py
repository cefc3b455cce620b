"""How large a model may be, judged by its configuration before anything is built.

Building takes time in proportion to the number of modules even where no memory is allocated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from service.contract.errors import TooLarge

_COUNTS = re.compile(r"(.*_)?(n_?)?(layers?|blocks?|depths?|experts?)")
"""Names under which configurations state how many modules there are."""


def check(model: str, config: Mapping[str, Any], most: int) -> None:
    """Refuse a configuration with more layers (blocks, experts), in any of its parts, than `most`.

    Raises:
        TooLarge: naming the field of the configuration, the limit and its setting.
    """
    for name, count in _counts(config):
        if count > most:
            raise TooLarge(
                f"`model`: {model} has {name} = {count}, above the limit of {most} "
                "(LACUNA_MAX_MODEL_LAYERS)",
                field="model",
            )


def _counts(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif isinstance(name, str) and name == "layer_types" and isinstance(value, (list, tuple)):
            yield f"len({name})", len(value)
        elif (
            isinstance(name, str)
            and _COUNTS.fullmatch(name)
            and isinstance(value, (int, float))
            and not isinstance(value, bool)
        ):
            yield name, value
