"""Every key that Lacuna keeps in Redis: its name, its type and its meaning.

All names share the hash tag `{lacuna}`, so a Redis Cluster keeps them on one node and every script
may touch any of them. `lua_header` gives the names to the Lua scripts; no name is written twice.

    key                              type     meaning
    {lacuna}:job:<id>                hash     one job (fields below); no TTL until it is terminal
    {lacuna}:ready:<lane>            zset     waiting jobs by time of creation (µs): the queue
    {lacuna}:ready:<lane>:hi         zset     the same with high priority; read first
    {lacuna}:leased:<queue>          zset     running jobs by the end of their lease (µs)
    {lacuna}:lanes:<queue>           set      what the jobs of a queue need (`kinds.needs`)
    {lacuna}:wake:<lane>             list     at most 64 tokens; idle workers block on it
    {lacuna}:ended:<state>           zset     jobs with this end, by its time (µs); bounded
    {lacuna}:dead                    stream   jobs that lost their worker too often; bounded
    {lacuna}:profile:<id>            hash     body, envelope, summary, model, size, created, pinned
    {lacuna}:profile:<id>:jobs       set      jobs that ended in this profile
    {lacuna}:profiles                zset     profile ids by creation (µs): the newest-first index
    {lacuna}:profiles:used           zset     profile ids by last use (µs): what to evict first
    {lacuna}:profiles:model:<model>  zset     the newest-first index of one model
    {lacuna}:profiles:bytes          string   sum of the sizes of all profiles
    {lacuna}:experiment:<id>         hash     result, rows, size of a done experiment, by its job;
                                              has a TTL
    {lacuna}:experiments             zset     ids of these by time (µs); bounded
    {lacuna}:tokenizer:<digest>      string   a tokenizer.json, compressed; expires when unused
    {lacuna}:worker:<name>           string   JSON of what a live worker offers; has a TTL
    {lacuna}:claim:<name>            string   id of the job that a worker took last; has a TTL
    {lacuna}:workers:<queue>         zset     a queue's workers by when they count as gone (µs)
    {lacuna}:workers:<queue>:<needs> zset     the same of a lane
    {lacuna}:stats                   hash     counters and histograms of all time; mean run times;
                                              when each queue and lane last had a worker (µs)
    {lacuna}:housekeeper             string   held by the worker that reconciles now; has a TTL
    {lacuna}:probe                   string   written to see whether the server takes writes
    {lacuna}:answer:<digest>         string   an answer of an endpoint to one call; has a TTL
    {lacuna}:endpoint:<name>         string   JSON of what an endpoint was found to offer
    {lacuna}:calls:<name>            zset     an endpoint's calls by when they count as lost (µs)
    {lacuna}:next:<name>             string   when its next call may start (µs); has a TTL
    {lacuna}:held:<name>             string   until when it asked us to wait (µs); has a TTL
    {lacuna}:events                  channel  the id of each job whose state or progress changed

A lane is `<queue>:<needs>`: the jobs of a queue that need the same kind and version of worker.

Fields of a job: `state`, `kind`, `needs`, `identity` (content address of the request), `queue`,
`high`, `pinned`, `document` (the request as JSON, dropped at the end because it may hold the
caller's texts), `private` (1 if it does), `declined` (1 while it stands aside, because a worker
could not read it), `trace` (id of the HTTP request), `attempts`, `token` (fence: the owner of the
lease), `lease` (its length in µs), `worker`, `progress`, `message`, `reported` (when the progress
last changed), `loaded` and `loaded_progress` (when the job first reported progress, and how much),
`cancel`, `interest` (number of callers who still want it), `by:<owner>` (1 while that caller wants
it, 0 afterwards), `created`, `started`, `finished`, `code`, `detail`, `retryable`, `field` (why it
failed), `profile` (the id of the profile). All times are microseconds since 1970 by the server's
clock.
"""

from __future__ import annotations

from typing import Final, Literal

QueueName = Literal["cpu", "gpu", "endpoints"]
QUEUES: Final[tuple[QueueName, ...]] = ("gpu", "cpu", "endpoints")
DEVICE_QUEUES: Final[tuple[QueueName, ...]] = ("gpu", "cpu")
"""Queues whose jobs a worker of the other kind could run too."""

PREFIX: Final = "{lacuna}"
JOB: Final = f"{PREFIX}:job:"
READY: Final = f"{PREFIX}:ready:"
LEASED: Final = f"{PREFIX}:leased:"
LANES: Final = f"{PREFIX}:lanes:"
WAKE: Final = f"{PREFIX}:wake:"
ENDED: Final = f"{PREFIX}:ended:"
DEAD: Final = f"{PREFIX}:dead"
PROFILE: Final = f"{PREFIX}:profile:"
EXPERIMENT: Final = f"{PREFIX}:experiment:"
EXPERIMENTS: Final = f"{PREFIX}:experiments"
PROFILES: Final = f"{PREFIX}:profiles"
PROFILES_USED: Final = f"{PREFIX}:profiles:used"
PROFILES_MODEL: Final = f"{PREFIX}:profiles:model:"
PROFILES_BYTES: Final = f"{PREFIX}:profiles:bytes"
TOKENIZER: Final = f"{PREFIX}:tokenizer:"
WORKER: Final = f"{PREFIX}:worker:"
WORKERS: Final = f"{PREFIX}:workers:"
CLAIM: Final = f"{PREFIX}:claim:"
STATS: Final = f"{PREFIX}:stats"
HOUSEKEEPER: Final = f"{PREFIX}:housekeeper"
ANSWER: Final = f"{PREFIX}:answer:"
ENDPOINT: Final = f"{PREFIX}:endpoint:"
CALLS: Final = f"{PREFIX}:calls:"
NEXT: Final = f"{PREFIX}:next:"
HELD: Final = f"{PREFIX}:held:"
EVENTS: Final = f"{PREFIX}:events"
PROBE: Final = f"{PREFIX}:probe"

HIGH: Final = ":hi"
JOBS_OF: Final = ":jobs"
DEAD_LETTERS: Final = 1_000
"""How many dead letters are kept."""
MAX_FINISHED: Final = 20_000
"""How many finished jobs are remembered of each end, unless the settings say otherwise."""
FORGOTTEN_AT_ONCE: Final = 100
"""How many finished jobs one step forgets at most."""
WAKE_TOKENS: Final = 64
"""How many tokens a wake list holds at most."""
HOUSEKEEPER_MS: Final = 60_000
"""How long one worker alone may reconcile."""
RECORD_GRACE_MS: Final = 86_400_000
"""A record that has no longer to live than this is over: `upkeep.lua` takes it away together with
its ids. If nobody does, Redis drops the record alone."""
ANNOUNCED_US: Final = 60_000_000
"""No worker announces itself for longer: what ends later was written before a clock went back."""
STRANDED_US: Final = 600_000_000
"""A job that waited this long in a lane without workers moves to the other queue (µs)."""
RESULTS_BYTES: Final = 268_435_456
"""All results of experiments together; beyond it the oldest go. One alone may take all of it."""

MEAN_RUN: Final = "mean_run:"
"""Fields of the stats, by queue and kind: mean run time in seconds; recent jobs count more."""
LAST_SEEN: Final = "seen:"
"""Fields of the stats: when a worker of a queue or lane last announced itself or stopped (µs)."""
TEXTS_DROPPED: Final = "texts_dropped"
TEXTS_FORGOTTEN: Final = "texts_forgotten"
"""Fields of the stats: how many requests with callers' own texts were dropped, and how many of
those the server's file has forgotten as well."""

WAIT_BUCKETS: Final[tuple[float, ...]] = (
    0.01, 0.1, 0.5, 1, 5, 15, 60, 120, 300, 600, 1_200, 2_400, 7_200,
)  # fmt: skip
RUN_BUCKETS: Final[tuple[float, ...]] = (
    0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1_200, 2_400, 7_200,
)  # fmt: skip
"""Upper bounds of the histograms of waiting and of running, in seconds."""


def job(job_id: str) -> str:
    """Key of one job (hash)."""
    return f"{JOB}{job_id}"


def profile(profile_id: str) -> str:
    """Key of one profile (hash)."""
    return f"{PROFILE}{profile_id}"


def experiment(job_id: str) -> str:
    """Key of the result of one experiment (hash)."""
    return f"{EXPERIMENT}{job_id}"


def lane(queue: QueueName, needs: str) -> str:
    """The jobs of a queue that need the same (`kinds.needs`)."""
    return f"{queue}:{needs}"


def ready(queue: QueueName, needs: str, *, high: bool = False) -> str:
    """Key of the waiting jobs of a lane (zset)."""
    return f"{READY}{lane(queue, needs)}{HIGH if high else ''}"


def lanes(queue: QueueName) -> str:
    """Key of what the jobs of a queue need (set)."""
    return f"{LANES}{queue}"


def leased(queue: QueueName) -> str:
    """Key of the running jobs of a queue (zset)."""
    return f"{LEASED}{queue}"


def wake(queue: QueueName, needs: str) -> str:
    """Key of the list that a lane's idle workers block on."""
    return f"{WAKE}{lane(queue, needs)}"


def tokenizer(name: str) -> str:
    """Key of a tokenizer by its digest (string)."""
    return f"{TOKENIZER}{name}"


def answer(name: str) -> str:
    """Key of an endpoint's answer by the digest of its request (string)."""
    return f"{ANSWER}{name}"


def endpoint(name: str) -> str:
    """Key of what an endpoint was found to offer (string)."""
    return f"{ENDPOINT}{name}"


def worker(name: str) -> str:
    """Key of what one worker offers (string)."""
    return f"{WORKER}{name}"


def workers(queue: QueueName) -> str:
    """Key of the names of a queue's workers (zset)."""
    return f"{WORKERS}{queue}"


def lua_header() -> str:
    """The names above as Lua locals, to put in front of a script."""
    names = {
        name: value
        for name, value in globals().items()
        if name.isupper() and isinstance(value, str | int)
    }
    lines = [
        f"local {name} = {value if isinstance(value, int) else repr(value)}"
        for name, value in sorted(names.items())
    ]
    lines += [
        f"local DEVICE_QUEUES = {{{', '.join(map(repr, DEVICE_QUEUES))}}}",
        f"local QUEUES = {{{', '.join(map(repr, QUEUES))}}}",
        f"local WAIT_BUCKETS = {{{', '.join(map(str, WAIT_BUCKETS))}}}",
        f"local RUN_BUCKETS = {{{', '.join(map(str, RUN_BUCKETS))}}}",
    ]
    return "\n".join(lines) + "\n"
