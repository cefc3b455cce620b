"""A worker process whose jobs do what their text says; no torch. Run by the tests as a script.

Texts: "sleep S" (in steps of 20 ms, with checks), "crash" (SIGKILL itself), "hang" (never checks),
"busy S" (S seconds without a check), "memory", "device", "bug", "refuse". Every start and every
complete run is noted in the data folder: a line "job pid time" in the files `starts` and `ends`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time

from lacuna.contract import profile_requests
from lacuna.contract.errors import ModelUnsupported
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.contract.profiles import ProfileSummary
from service.settings import Settings
from service.store.claims import ProfileOutcome
from workers import lease
from workers.__main__ import main
from workers.faults import DeviceBroken
from workers.lease import JobContext
from workers.loop import Capabilities


def outcome_of(request: ProfileRequest) -> ProfileOutcome:
    """A result that depends on nothing but the request."""
    digest = hashlib.sha256(request.job_id.encode()).hexdigest()
    summary = ProfileSummary(
        id=digest[:32],
        model=request.model,
        revision=None,
        weights="random",
        sequence_length=request.sequence_length,
        objective="jacobian",
        documents=1,
        shape="u_shaped",
        dead_zone=None,
        dead_zone_verdict="none",
        primacy_mass=0.1,
        recency_mass=0.2,
        created_at="2026-01-01T00:00:00.000Z",
    )
    body = json.dumps({"id": digest[:32], "numbers": [int(c, 16) for c in digest] * 20}).encode()
    return ProfileOutcome(
        digest[:32], body, b'{"timings": null}', summary.model_dump_json().encode()
    )


class FakeHandler:
    def __init__(self, settings: Settings) -> None:
        self._notes = settings.data_dir

    def describe(self) -> Capabilities:
        return Capabilities(device="cpu", warm=("preset:gpt2",))

    def _note(self, kind: str, request: ProfileRequest) -> None:
        line = f"{request.job_id} {os.getpid()} {time.time():.6f}\n".encode()
        descriptor = os.open(self._notes / kind, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, line)
        os.close(descriptor)

    def __call__(self, request: ProfileRequest, context: JobContext) -> ProfileOutcome:
        self._note("starts", request)
        word, _, argument = (request.documents.texts or ["sleep 0"])[0].partition(" ")
        if word == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif word == "hang":
            time.sleep(3_600)
        elif word == "busy":
            time.sleep(float(argument))
        elif word == "memory":
            raise MemoryError
        elif word == "device":
            raise DeviceBroken("an illegal address was met")
        elif word == "bug":
            raise ZeroDivisionError("secret detail")
        elif word == "refuse":
            raise ModelUnsupported("model: no causal attention")
        else:
            seconds = float(argument.partition("#")[0])
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                context.progress(1 - left / seconds, "working")
                context.check()
                time.sleep(0.02)
        self._note("ends", request)
        return outcome_of(request)


if __name__ == "__main__":
    profile_requests.METHOD_VERSION = os.environ.get(  # as an older worker has it
        "TEST_METHOD_VERSION", profile_requests.METHOD_VERSION
    )
    lease.CANCEL_LIMIT_SECONDS = float(os.environ.get("TEST_CANCEL_LIMIT", "300"))
    lease.STOP_LIMIT_SECONDS = float(os.environ.get("TEST_STOP_LIMIT", "5"))
    sys.exit(main(FakeHandler))
