"""docs/architecture.md is read as the law: its import table, its walks, and its picture."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
TEXT = PAGE.read_text()
PACKAGES = ("lacuna", "service", "workers")
HEAVY = {"torch", "transformers"}
ROOTS = {"workers.__main__", "workers.endpoints.__main__", "workers.experiments.__main__"}


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if "build" in path.relative_to(ROOT).parts:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def names(path: Path, *, at_import: bool = False) -> Iterator[str]:
    """What a file imports: modules, and members as `module.member`.

    With `at_import`, only what runs when the module is loaded: nothing inside functions, nothing
    for type checkers.
    """
    todo: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif at_import and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        elif at_import and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
        else:
            todo += ast.iter_child_nodes(node)


def ours(path: Path, *, at_import: bool = False) -> set[str]:
    """The modules of ours that a file imports."""
    found = set()
    for name in names(path, at_import=at_import):
        module = name
        while module and module not in MODULES:
            module = module.rpartition(".")[0]
        if module:
            found.add(module)
    return found


def below(name: str, floors: set[str]) -> bool:
    return any(name == floor or name.startswith(f"{floor}.") for floor in floors)


def table() -> dict[str, set[str]]:
    """Floor -> what of ours it may import, from the page's import table. First match counts."""
    rows = re.findall(r"^\| `([a-z_.]+)` \|([^|]*)\|", TEXT, re.MULTILINE)
    return {floor: {floor, *re.findall(r"`([a-z_.]+)`", allowed)} for floor, allowed in rows}


TABLE = table()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_floors_below_it(module: str) -> None:
    if module in PACKAGES and module != "lacuna":
        return
    floor = next((prefix for prefix in TABLE if below(module, {prefix})), None)
    assert floor is not None, f"{module} stands on no floor of the table"
    for name in ours(MODULES[module]) - set(PACKAGES):
        assert below(name, TABLE[floor]), f"{module} imports {name}"


def test_every_floor_of_the_table_is_there() -> None:
    for floor, allowed in TABLE.items():
        for name in allowed:
            assert below(name, {floor}) or any(below(m, {name}) for m in MODULES), name


def test_there_is_no_import_cycle() -> None:
    # A package's __init__ runs before its modules, but naming a member of it is no dependency on
    # what the package exports.
    graph = {
        module: {m for m in ours(path, at_import=True) if m != module}
        for module, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module in done:
            return
        for name in sorted(graph[module]):
            visit(name, (*trail, module))
        done.add(module)

    for module in sorted(graph):
        visit(module, ())


@pytest.mark.parametrize("module", [m for m in sorted(MODULES) if below(m, {"lacuna"})])
def test_the_library_needs_neither_torch_nor_a_server(module: str) -> None:
    allowed = {"numpy", "scipy", "pydantic", "pydantic_core", "httpx", "lacuna"}
    adapters = {"langchain_core", "llama_index", "haystack", "PIL", "pandas", "matplotlib"}
    adapters |= {"jinja2", "opentelemetry", "regex"}
    outside = {
        name.split(".")[0]
        for name in names(MODULES[module])
        if name.split(".")[0] not in sys.stdlib_module_names
    }
    assert outside <= allowed | adapters


@pytest.mark.parametrize("module", ["workers.loop", "workers.lease", "workers.faults"])
def test_the_worker_loop_loads_without_torch(module: str) -> None:
    assert loaded_by(module).isdisjoint(HEAVY)


def test_endpoints_load_without_torch() -> None:
    assert loaded_by("workers.endpoints.__main__").isdisjoint(HEAVY)
    assert loaded_by("workers.experiments.__main__").isdisjoint(HEAVY)


def test_the_gateway_loads_neither_torch_nor_transformers() -> None:
    assert loaded_by("service.gateway.app").isdisjoint(HEAVY)


def test_the_library_loads_nothing_of_the_servers() -> None:
    assert loaded_by("lacuna").isdisjoint({"service", "workers", *HEAVY})


def loaded_by(module: str) -> set[str]:
    code = f"import {module}, sys; print(' '.join(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.split(".")[0] for name in answer.stdout.split()}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_the_environment_is_read_by_settings_and_roots_alone(module: str) -> None:
    if below(module, {"service.terminal", "service.local", "service.settings", *ROOTS}):
        return
    source = MODULES[module].read_text()
    assert "os.environ" not in source, f"{module} reads the environment"
    assert "getenv" not in source, f"{module} reads the environment"


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:lacuna|service|workers|tests|docs|bench)/[\w./]+)`", TEXT)
    assert named
    for name in named:
        assert (ROOT / name).exists(), name


HOP = re.compile(r"`([\w/]+\.py)` -> `([\w/]+\.py)`")


@pytest.mark.parametrize(("importer", "imported"), HOP.findall(TEXT))
def test_every_hop_of_a_walk_is_an_import(importer: str, imported: str) -> None:
    target = next(name for name, path in MODULES.items() if path == ROOT / imported)
    assert target in ours(ROOT / importer), f"{importer} does not import {imported}"


def test_the_walks_have_hops() -> None:
    assert len(HOP.findall(TEXT)) >= 20


def test_the_picture_shows_the_table() -> None:
    path = ROOT / "docs" / "architecture_picture.py"
    spec = importlib.util.spec_from_file_location("architecture_picture", path)
    assert spec is not None
    assert spec.loader is not None
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    drawn = (ROOT / "docs" / "images" / "architecture.svg").read_text()
    assert drawn == drawing.svg(TABLE), "draw it again: python docs/architecture_picture.py"


@pytest.mark.parametrize("package", ["lacuna"])
def test_the_distribution_lists_every_folder(package: str) -> None:
    listed = re.findall(
        r'^  "(lacuna[\w.]*)",$', (ROOT / package / "pyproject.toml").read_text(), re.MULTILINE
    )
    folders = {m for m, path in MODULES.items() if path.name == "__init__.py"}
    assert set(listed) == {m for m in folders if below(m, {package})}
