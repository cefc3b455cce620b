"""Answer a calibration request: `score_calibration.fit` behind the contract."""

from __future__ import annotations

import numpy as np

from lacuna.contract.calibrations import Calibration, CalibrationRequest
from lacuna.contract.errors import InvalidRequest
from lacuna.placement.score_calibration import fit


def calibrate(request: CalibrationRequest) -> Calibration:
    """The calibration of labelled scores, with its reliability.

    Raises:
        InvalidRequest: fewer than 20 labels of a kind, one question only, or scores that do not
            rise with the labels on the scale given.
    """
    questions = None
    if request.questions is not None:
        questions = np.unique(np.array(request.questions), return_inverse=True)[1]
    try:
        found = fit(
            np.array(request.scores),
            np.array(request.labels),
            questions,
            family=request.family,
            higher_is_better=request.higher_is_better,
        )
    except ValueError as error:
        raise InvalidRequest(str(error), field="labels") from error
    wire = found.to_dict()
    return Calibration.model_validate({**wire, "x": list(wire["x"]), "y": list(wire["y"])})
