"""All settings of all processes, in one frozen class.

Every field is an environment variable with the prefix `LACUNA_`. Only the roots build settings
(`service.terminal`, `service.gateway.app.factory`, `workers.__main__`), and hand them down.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, Self, get_args
from urllib.parse import parse_qs, quote, unquote, urlsplit

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from lacuna.contract.validation import NOT_A_NUMBER, is_number
from service.endpoints.table import Endpoints, SettingsInvalid

_LONGEST = 1e9
"""Seconds: thirty years. The store counts microseconds, and a longer time overflows there."""
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_PLACEHOLDERS = {"changeme", "change-me", "secret", "password", "xxx", "todo", "example"}
_DIGEST = re.compile(r"[0-9A-Fa-f]{64}")
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,31}")
StringList = Annotated[tuple[str, ...], NoDecode]
Role = Literal["read", "place", "measure", "admin"]
"""What an API key may do. Each role includes those before it."""
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class ApiKey:
    """An API key, as the gateway knows it.

    Args:
        name: what logs and metrics call it.
        digest: SHA-256 of the key, 64 lower-case hex digits.
    """

    name: str
    role: Role
    digest: str

    def may(self, needed: Role) -> bool:
        """Whether the key's role includes `needed`."""
        return ROLES.index(self.role) >= ROLES.index(needed)


class Settings(BaseSettings):
    """Configuration of gateway, worker and command line.

    Raises:
        pydantic.ValidationError: a value is out of bounds, a placeholder was left in, or the
            gateway would listen beyond loopback without API keys.
    """

    model_config = SettingsConfigDict(
        env_prefix="LACUNA_",
        env_ignore_empty=True,  # Compose and Kubernetes pass what nobody set as an empty string
        frozen=True,
        allow_inf_nan=False,
        extra="ignore",
        hide_input_in_errors=True,  # it may be a password
        use_attribute_docstrings=True,
    )

    # Where things are
    redis_url: SecretStr | None = None
    """redis://, rediss:// or unix://; unset: an embedded server in the data folder."""
    store_max_bytes: int = Field(default=2_000_000_000, ge=10_000_000)
    """Memory of the embedded store. When it is nearly used up, no new jobs are accepted."""
    data_dir: Path = Path("~/.cache/lacuna")
    """The embedded server's data, converted demo weights, results waiting to be recorded."""
    model_dir: Path | None = None
    """`local:NAME` resolves below this folder."""
    corpus_dir: Path | None = None
    """`documents: {source: corpus}` resolves below this folder."""

    endpoints: str = ""
    """Models behind an API that may be measured as `endpoint:NAME`: a JSON table, or the path of a
    TOML file. It names where keys are and holds none."""

    # Gateway
    host: str = "127.0.0.1"
    """Address that the gateway listens on; beyond loopback keys are required."""
    port: int = Field(default=8080, ge=0, le=65_535)
    """Port that the gateway listens on; 0 lets the system choose one."""
    api_keys: StringList = ()
    """`name:role:hash`, comma separated: the role is read, place, measure or admin, the hash is the
    key's SHA-256 in hex. A plain key or a hash alone has the role measure. Required beyond
    loopback."""
    allow_anonymous: bool = False
    """Serve beyond loopback without keys."""
    allowed_models: StringList = ("*",)
    """Patterns (fnmatch) that a model id must match."""
    max_body_bytes: int = Field(default=8_000_000, ge=1_000)
    """Size of a request body beyond which it is refused with 413."""
    max_experiment_bytes: int = Field(default=16_000_000, ge=1_000)
    """The same of POST /v1/experiments: questions with their chunks are long."""
    max_bodies_bytes: int = Field(default=64_000_000, ge=1_000)
    """Bytes of long request bodies (beyond 64 kB each) that a gateway holds at a time, half of them
    of one caller; what does not fit is refused with 429."""
    max_connections_per_address: int = Field(default=0, ge=0)
    """Connections of one address (IPv6: of one /64 network) that a gateway keeps open; 0 is half of
    all, which are 4,096 where the system allows so many open files. Behind a proxy, every
    connection is the proxy's: set it to 4096 there."""
    rate_limit_per_minute: int = Field(default=0, ge=0)
    """Requests per key and minute; 0 sets no limit."""
    max_queued: int = Field(default=10_000, ge=1)
    """Waiting jobs beyond which a new one is refused with 429."""
    max_cost: float = Field(default=1.2e14, gt=0)
    """Most multiply-adds of a request (`lacuna.contract.profile_requests.cost`) while only CPU
    workers run. The default takes one core about two hours."""
    max_cost_gpu: float = Field(default=2e17, gt=0)
    """The same while a GPU worker runs: requests then go to the GPU queue."""
    max_wait_seconds: float = Field(default=60.0, gt=0, le=_LONGEST)
    """Longest `Prefer: wait`."""
    resolve_ttl: float = Field(default=3_600.0, gt=0, le=_LONGEST)
    """Seconds for which a floating revision is answered from the cache."""
    theory_threads: int = Field(default=2, ge=1, le=16)
    """Threads of a gateway for rollouts, placements and pictures."""

    # Queue
    lease_seconds: float = Field(default=45.0, gt=0, le=86_400.0)
    """Seconds without a sign of life from a worker after which another worker takes its job."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """Workers that one job may lose before it fails with `worker_lost`."""
    job_ttl: float = Field(default=7 * 86_400.0, gt=0, le=_LONGEST)
    """Seconds for which the record of a finished job is kept."""
    max_finished_jobs: int = Field(default=20_000, ge=1)
    """How many records of finished jobs are kept of each end (done, failed, cancelled). A record
    takes about 1 kB. A request without a record is queued again, and its worker finds the
    profile."""
    profile_ttl: float = Field(default=0.0, ge=0, le=_LONGEST)
    """Seconds after which an unused profile is dropped; 0 is never."""
    max_profile_bytes: int = Field(default=0, ge=0)
    """Total bytes of profiles beyond which the least recently used are dropped; 0 sets no bound."""
    grace_seconds: float = Field(default=20.0, ge=0, le=_LONGEST)
    """Seconds that a worker may take to finish its job after SIGTERM."""
    eviction_policy_check: Literal["refuse", "warn"] = "refuse"
    """What to do when Redis evicts keys under memory pressure."""

    # Worker
    queue: Literal["auto", "cpu", "gpu", "endpoints"] = "auto"
    """Queue that a worker serves; auto is the one of its device, `endpoints` measures models behind
    an API and needs no torch."""
    answers_ttl: float = Field(default=7 * 86_400.0, ge=60)
    """Seconds for which answers of endpoints are kept: a measurement that is started again pays for
    none of them twice."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where a worker computes; auto is CUDA where there is a GPU."""
    torch_threads: int = Field(default=1, ge=1, le=256)
    """Threads of torch in each worker; all workers together should have no more than free cores."""
    model_cache_bytes: int = Field(default=8_000_000_000, ge=0)
    """Bytes of models that a worker keeps loaded between jobs."""
    max_model_layers: int = Field(default=512, ge=1)
    """Layers, or experts of a layer, that a model's configuration may state."""
    batch_size: int = Field(default=0, ge=0)
    """Documents per batch; 0 chooses from free memory."""
    hub_token: SecretStr | None = None
    """Token of the model hub, for gated models; only workers need it."""

    # Logs
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that are written."""
    log_format: Literal["json", "text"] = "json"
    """`json` for machines, a line each; `text` for people."""
    exit_reason_fd: int | None = Field(default=None, ge=0)
    """File descriptor to which a process writes why it ends. `lacuna serve` sets it."""

    @field_validator("api_keys", "allowed_models", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part for item in value.split(",") if (part := item.strip()))
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _plain_numbers(cls, value: object, field: ValidationInfo) -> object:
        """Numbers of the environment as everybody reads them: Python also takes 1_0."""
        kind = cls.model_fields[str(field.field_name)].annotation
        numeric = not {int, float}.isdisjoint((kind, *get_args(kind)))
        if isinstance(value, str) and numeric and not is_number(value.strip()):
            raise ValueError(NOT_A_NUMBER)
        return value

    @field_validator("data_dir", "model_dir", "corpus_dir")
    @classmethod
    def _whole_path(cls, path: Path | None) -> Path | None:
        """Absolute, with `~` expanded: child processes may run in another folder."""
        try:
            return None if path is None else path.expanduser().absolute()
        except RuntimeError:
            raise ValueError(
                f"{path}: no home folder is known; give a path that begins with /"
            ) from None

    @field_validator("endpoints")
    @classmethod
    def _a_table(cls, value: str) -> str:
        try:
            Endpoints.from_setting(value)
        except SettingsInvalid as error:  # its message holds no value of the table
            raise ValueError(str(error)) from None
        return value if value.lstrip().startswith("{") or not value.strip() else _absolute(value)

    @field_validator("redis_url")
    @classmethod
    def _an_address(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not _is_store(url.get_secret_value()):
            raise ValueError(  # without the address, which may hold the password
                "this is not redis://[[user]:password@]host[:port][/number], rediss://... or "
                "unix:///path; write / ? # @ : in a password as %2F %3F %23 %40 %3A"
            )
        if url is not None and (problem := _option_problem(url.get_secret_value())):
            raise ValueError(problem)
        return url

    @field_validator("api_keys")
    @classmethod
    def _usable_keys(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        found = _parse_keys(keys)
        for (one, first), (two, second) in combinations(enumerate(found, 1), 2):
            if first.name == second.name:
                raise ValueError(f"API keys {one} and {two} have the name {first.name}")
            if first.digest == second.digest:
                raise ValueError(f"API keys {one} and {two} have the same key")
        return keys

    @model_validator(mode="after")
    def _no_open_door(self) -> Self:
        if self.host not in _LOOPBACK and not self.api_keys and not self.allow_anonymous:
            raise ValueError(
                f"host {self.host} is reachable from outside: set LACUNA_API_KEYS, "
                "or LACUNA_ALLOW_ANONYMOUS=true to serve it without keys"
            )
        return self

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """The API keys. One without a name is called `key-N`, by its place in the list from 1."""
        return _parse_keys(self.api_keys)

    @property
    def endpoint_table(self) -> Endpoints:
        """The endpoints by name; a file is read at each call."""
        return Endpoints.from_setting(self.endpoints)

    @property
    def embedded(self) -> bool:
        """Whether the embedded server is used."""
        return self.redis_url is None

    @property
    def socket_path(self) -> Path:
        """Unix socket of the embedded server."""
        return self.data_dir / "redis.sock"

    @property
    def store_url(self) -> str:
        """URL of the store, embedded or not."""
        if self.redis_url is not None:
            return self.redis_url.get_secret_value()
        return f"unix://{quote(str(self.socket_path))}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no log may show: keys, the hub's token, the store's password, encoded and plain."""
        found = [entry.rpartition(":")[2] for entry in self.api_keys]
        if self.hub_token is not None:
            found.append(self.hub_token.get_secret_value())
        if self.redis_url is not None:
            parts = urlsplit(self.redis_url.get_secret_value())
            found += parse_qs(parts.query).get("password", [])
            if parts.password:
                found += [parts.password, unquote(parts.password)]
        return (*found, *self.endpoint_table.secrets)

    def environment(self) -> dict[str, str]:
        """These settings as environment variables, to configure a child process the same way."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return {
            f"LACUNA_{name.upper()}": _as_text(value)
            for name, value in values.items()
            if value is not None
        }


def _parse_keys(entries: tuple[str, ...]) -> tuple[ApiKey, ...]:
    """The keys of a list.

    Raises:
        ValueError: names the entry by its place; its text may be a secret.
    """
    return tuple(_parse_key(at, entry) for at, entry in enumerate(entries, 1))


def _parse_key(at: int, entry: str) -> ApiKey:
    if ":" not in entry:
        if entry.lower() in _PLACEHOLDERS or len(entry) < 16:
            raise ValueError(f"API key {at} is a placeholder or shorter than 16 characters")
        known = _DIGEST.fullmatch(entry)
        digest = entry.lower() if known else hashlib.sha256(entry.encode()).hexdigest()
        return ApiKey(f"key-{at}", "measure", digest)
    name, role, digest = (*entry.split(":", 2), "")[:3]
    found = next((one for one in ROLES if one == role), None)
    if not _KEY_NAME.fullmatch(name):
        wrong = "the name has 1 to 32 letters, digits and . _ -"
    elif found is None:
        wrong = f"the role is one of {', '.join(ROLES)}"
    elif not _DIGEST.fullmatch(digest):
        wrong = "the hash is the key's SHA-256, 64 hex digits"
    else:
        return ApiKey(name, found, digest.lower())
    raise ValueError(f"API key {at} is not name:role:hash: {wrong}")


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _is_store(url: str) -> bool:
    """Whether a text has the form of a Redis URL."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises when it is not a number
        if parts.query:
            parse_qs(parts.query, strict_parsing=True)
    except ValueError:
        return False
    if parts.scheme == "unix":
        return bool(parts.path)
    database = parts.path.removeprefix("/")
    return (
        parts.scheme in {"redis", "rediss"}
        and bool(parts.hostname)
        and (not database or (database.isascii() and database.isdecimal()))
        and not parts.fragment
    )


_STORE_OPTIONS = frozenset({"client_name", "db", "password", "protocol", "username"})
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def _option_problem(url: str) -> str | None:
    """What is wrong with the options behind the ? of a Redis URL, if anything; never a password."""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    for name, value in options.items():
        # Timeouts, retries and decoding are the service's own: an address would override them.
        if name not in _STORE_OPTIONS and not (name.startswith("ssl_") and parts.scheme != "redis"):
            known = ", ".join([*sorted(_STORE_OPTIONS), "and with rediss:// those of ssl_"])
            return f"the option {name:.40} of the address is none of {known}"
        if name in _TLS_FILES and not Path(value).is_file():
            return f"{name}: there is no file {value}"
    if options.get("ssl_cert_reqs", "none") not in ("none", "optional", "required"):
        return "ssl_cert_reqs is none, optional or required"
    if options.get("protocol", "2") not in ("2", "3"):
        return "protocol is 2 or 3"
    if options and not _can_be_made(url):
        return f"an option of the address has an impossible value: {', '.join(options)}"
    return None


def _can_be_made(url: str) -> bool:
    """Whether redis-py makes a connection of a URL; it connects to nothing."""
    import redis  # slow, and needed only for an address with options

    try:
        redis.ConnectionPool.from_url(url).make_connection()
    except (TypeError, ValueError, redis.RedisError):
        return False
    return True


def first_fault(error: ValidationError) -> str:
    """One line that names the wrong setting, without its value."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = "_".join(str(part) for part in first["loc"][:1]).upper()
    message = first["msg"].removeprefix("Value error, ")
    return f"setting LACUNA_{name}: {message}" if name else message


def _as_text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)
