"""Models from the Hugging Face hub: a revision becomes a commit, a commit a folder of safe files.

The hub library's exceptions become ours here and nowhere else. A gated repository, a missing one
and an unreachable hub give different errors.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import getproxies

import httpx2
from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lacuna.architectures.table import find_preset
from lacuna.contract.errors import ModelGated, ModelNotFound, ModelUnreachable
from workers.models import demo, weights
from workers.models.loaded import LoadOptions

log = logging.getLogger("workers")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_GATED_STATUS = {401, 403}
_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit."""

    model: str
    commit: str
    files: tuple[str, ...] | None
    """Names of all its files; None when the hub is unreachable and only the cache is known."""


def resolve(model: str, revision: str | None, options: LoadOptions) -> Snapshot:
    """Find the commit that a revision means now.

    The revision is a branch, a tag or a commit; None is the default branch. A commit that is in the
    local cache needs no hub.

    Raises:
        ModelNotFound, ModelGated, ModelUnreachable.
    """
    pinned = revision if revision is not None and _COMMIT.fullmatch(revision) else None
    try:
        with _translated(model, revision):
            info = _api(options).model_info(model, revision=revision, timeout=_TIMEOUT_SECONDS)
    except ModelUnreachable:
        if pinned is None or _cached(model, pinned, options) is None:
            raise
        return Snapshot(model, pinned, None)
    if info.sha is None:
        raise ModelUnreachable(
            f"`model`: the hub names no commit for {model}", field="model", retry_after=30
        )
    names = tuple(sibling.rfilename for sibling in info.siblings or ())
    return Snapshot(model, info.sha, names)


def fetch(snapshot: Snapshot, options: LoadOptions, *, pretrained: bool) -> Path:
    """Download configuration, tokenizer and, when asked for, safetensors weights.

    Raises:
        ModelNotFound, ModelGated, ModelUnreachable, ModelUnsupported, WeightsUnsafe.
    """
    if snapshot.files is None:
        folder = _cached(snapshot.model, snapshot.commit, options)
        assert folder is not None  # resolve() has seen it
        names = [entry.name for entry in folder.iterdir()]
        if pretrained and not weights.weight_files(names):  # only its configuration was fetched
            raise _unreachable(snapshot.model)
        weights.check_files(snapshot.model, names, pretrained=pretrained)
        return folder
    weights.check_files(snapshot.model, snapshot.files, pretrained=pretrained)
    if pretrained:
        weights.check_no_quantisation_file(snapshot.model, snapshot.files)
    wanted = weights.config_files(snapshot.files)
    if pretrained:
        wanted |= weights.weight_files(snapshot.files)
    with _translated(snapshot.model, snapshot.commit):
        return Path(
            snapshot_download(
                snapshot.model,
                revision=snapshot.commit,
                allow_patterns=sorted(wanted),
                cache_dir=options.hub_cache,
                endpoint=options.hub_endpoint,
                token=options.hub_token or False,
            )
        )


def _api(options: LoadOptions) -> HfApi:
    return HfApi(endpoint=options.hub_endpoint, token=options.hub_token or False)


def _cached(model: str, commit: str, options: LoadOptions) -> Path | None:
    try:
        return Path(
            snapshot_download(
                model, revision=commit, cache_dir=options.hub_cache, local_files_only=True
            )
        )
    except (LocalEntryNotFoundError, CachedRepoTreeNotFoundError):
        # We never fetch the whole tree, so it is seldom complete: look at the folder itself.
        return _partial(model, commit, options)


def _partial(model: str, commit: str, options: LoadOptions) -> Path | None:
    config = try_to_load_from_cache(
        model, "config.json", revision=commit, cache_dir=options.hub_cache
    )
    return Path(config).parent if isinstance(config, str) else None


@contextmanager
def _translated(model: str, revision: str | None) -> Iterator[None]:
    """Raise Lacuna's errors in place of the hub library's."""
    try:
        yield
    except GatedRepoError as error:
        raise _gated(model) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"`model`: the hub has no repository {model}, or it is private", field="model"
        ) from error
    except DisabledRepoError as error:
        raise ModelNotFound(
            f"`model`: the repository {model} was disabled on the hub", field="model"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(
            f"`revision`: {model} has no revision {revision!r}", field="revision"
        ) from error
    except HFValidationError as error:
        raise ModelNotFound(f"`model`: {model} is not a valid hub id", field="model") from error
    except LocalEntryNotFoundError as error:
        raise _from_cause(model, error) from error
    except EntryNotFoundError as error:
        raise ModelNotFound(
            f"`model`: {model} lacks a file that its listing names", field="model"
        ) from error
    except HfHubHTTPError as error:
        raise _from_status(model, error) from error
    except (httpx2.HTTPError, OfflineModeIsEnabled, ConnectionError, TimeoutError) as error:
        raise _unreachable(model) from error
    except (ImportError, ValueError, httpx2.InvalidURL, FileNotFoundError, ssl.SSLError) as error:
        # From making the client: a proxy or a certificate that the environment names.
        log.exception("the hub's client cannot be made")
        raise _unreachable(model, _environment(error)) from error


def _from_cause(model: str, error: BaseException) -> ModelGated | ModelUnreachable:
    cause = error.__cause__
    if isinstance(cause, HfHubHTTPError):
        return _from_status(model, cause)
    return _unreachable(model)


def _from_status(model: str, error: HfHubHTTPError) -> ModelGated | ModelUnreachable:
    response = error.response
    if response is not None and response.status_code in _GATED_STATUS:
        return _gated(model)
    return _unreachable(model)


def _gated(model: str) -> ModelGated:
    return ModelGated(
        f"`model`: {model} asks for an agreement on the hub; accept it and give the worker a token "
        "(LACUNA_HUB_TOKEN)",
        field="model",
    )


def _environment(error: Exception) -> str:
    """The variables that may be at fault, without their values, which may hold a password."""
    if isinstance(error, OSError):
        return " (the worker cannot use its SSL_CERT_FILE or SSL_CERT_DIR)"
    names = [f"{name.upper()}_PROXY" for name in getproxies()]
    return f" (the worker cannot use its {' or '.join(names) or 'proxy settings'})"


def _unreachable(model: str, why: str = "") -> ModelUnreachable:
    return ModelUnreachable(
        f"`model`: the hub could not be reached{why}, so nothing is known about {model}; "
        f"{_without_hub(model)}",
        field="model",
        retry_after=60,
    )


def _without_hub(model: str) -> str:
    """What can be measured without a hub, the closest to the request first."""
    known = find_preset(model)
    random = f"`preset:{known.name if known else 'NAME'}` with `weights: random`"
    others = ["`local:NAME`", *(f"`demo:{name}`" for name in demo.DEMOS)]
    return f"no hub is needed for {random}, {', '.join(others[:-1])} and {others[-1]}"
