"""What can be measured here: what GET /v1/models answers."""

from __future__ import annotations

from collections.abc import Sequence

from service.contract.models import ModelCatalogue, WorkerModels

DEMO = ("demo:smollm2-135m-instruct",)
PRESETS: tuple[str, ...] = ()
ARCHITECTURES: tuple[str, ...] = ()


def catalogue(workers: Sequence[WorkerModels]) -> ModelCatalogue:
    """The catalogue, with the workers that live now."""
    return ModelCatalogue(
        demo=list(DEMO),
        presets=list(PRESETS),
        architectures=list(ARCHITECTURES),
        workers=list(workers),
    )
