"""What a checkpoint has too little or too much for its model, by what transformers reports.

Too little is refused. Too much is said: the file may belong to another model than its
configuration.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lacuna.architectures import table
from lacuna.contract.errors import ModelUnsupported

_NAMED = 3
"""Tensors whose names a message gives."""
_ADAPTER = re.compile(r"(^|[._])(lora|loha|lokr|dora|ia3|adapter|hada)([._]|$)", re.IGNORECASE)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_REPORTED = re.compile(r"(?:\x1b\[\d+m)?(\S.*?)\s*\|\W*(?:\d+m)?(?:MISSING|CONVERSION|MISMATCH)")
_HEAD = re.compile(r"(^|\.)(score|classifier|v_head|value_head|reward_head|regression_head)(\.|$)")


def check_complete(model: str, found: Mapping[str, Any]) -> None:
    """Refuse weights that leave a parameter unset.

    Args:
        model: id, for the message.
        found: the loading report of transformers.

    Raises:
        ModelUnsupported: names the first such tensor, and the shapes where they differ.
    """
    wrong = sorted((str(name), tuple(a), tuple(b)) for name, a, b in found["mismatched_keys"])
    missing = sorted(set(found["missing_keys"]) - {name for name, _, _ in wrong})
    errors = [str(one) for one in found.get("error_msgs", ())]
    if wrong:
        first = _misfit(*wrong[0])
    elif missing:
        first = missing[0]
    elif errors:
        first = errors[0].strip().split("\n")[0][:200]
    else:
        return
    raise ModelUnsupported(
        f"`model`: the weights of {model} are incomplete: "
        f"{len(missing) + len(wrong) + len(errors)} tensors are missing or do not fit ({first})",
        field="model",
    )


@contextmanager
def report() -> Iterator[list[str]]:
    """What transformers logs of a load; where weights are fused, only that names the tensors."""
    lines: list[str] = []
    log = logging.getLogger("transformers.modeling_utils")
    handler = logging.Handler()
    handler.emit = lambda record: lines.extend(record.getMessage().splitlines())  # type: ignore[method-assign]
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.WARNING)
    log.propagate = False  # tables with tracebacks; what they say becomes warnings and errors
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


def named(lines: Sequence[str]) -> str | None:
    """The first tensor that a report calls missing or not converted."""
    for line in lines:
        found = _REPORTED.match(line)
        if found:
            return found[1][:200]
    return None


def _misfit(name: str, stored: Sequence[int], wanted: Sequence[int]) -> str:
    what = f"{name} has the shape {list(stored)}, the configuration asks for {list(wanted)}"
    if math.prod(stored) == 0:
        return f"{what}; it is empty, as ZeRO-3 leaves weights that were not gathered"
    return what


def unused(built: str, config: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings about tensors that the model has no place for, by kind, and about another class.

    Args:
        built: the name of the model's class.
        config: config.json.
        found: the loading report of transformers.
    """
    names = sorted(str(name) for name in found["unexpected_keys"])
    warnings = []
    for what, some in _by_kind(names, config).items():
        shown = ", ".join(name[:120] for name in some[:_NAMED])
        more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
        warnings.append(f"{len(some)} tensors of the weights are not used, {what}: {shown}{more}")
    saved = config.get("architectures")
    if isinstance(saved, list) and saved and built not in saved:
        warnings.append(f"the weights were saved as {str(saved[0])[:80]} and are read as {built}")
    return tuple(warnings)


def _by_kind(names: Sequence[str], config: Mapping[str, Any]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(_kind(name, config), []).append(name)
    return kinds


def _kind(name: str, config: Mapping[str, Any]) -> str:
    if _ADAPTER.search(name):
        return "an adapter that was not merged"
    if _HEAD.search(name):
        return "a head for another task"
    layer, depth = _LAYER.search(name), _depth(config)
    if layer and depth and int(layer[1]) >= depth:
        return f"layers beyond the {depth} of the configuration"
    return "the configuration has no place for them"


def _depth(config: Mapping[str, Any]) -> int:
    text = config.get("text_config")
    return table.layers(config) or (table.layers(text) if isinstance(text, dict) else 0)
