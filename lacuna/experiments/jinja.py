"""The user's Jinja templates, in a sandbox that bounds time and output before anything is rendered.

A template may write text and fields, loop over `chunks`, and test with `if`. There are no calls, no
assignments, no loops inside loops, no attributes but those of the loop, and few filters. So it runs
once through the chunks, and no text grows by itself. The output is cut off at a limit as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lacuna.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from jinja2 import Environment, Template, nodes

MAX_OUTPUT = 4_000_000
"""Characters of one prompt."""
MAX_NODES = 300
"""Parts of a template: pieces of text, fields, tests."""
CHUNK_FIELDS = frozenset({"number", "text", "id", "document"})
LOOP_FIELDS = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length"})
FILTERS = frozenset({"trim", "upper", "lower", "title", "capitalize", "length", "default", "d"})
MAX_DEPTH = 32
"""Parts inside each other. To compile a template takes time that grows much faster than its depth
(20 s for 290 filters in a row), and from about 100 on Python refuses what Jinja made of it."""
_FIELD = "template"
_TAKEN = frozenset({"question", "chunks", "loop"})
_NODES = frozenset({
    "Template", "Output", "TemplateData", "For", "If", "Name", "Getattr", "Getitem", "Const",
    "Compare", "Operand", "And", "Or", "Not", "CondExpr", "Filter", "Add", "Sub",
})  # fmt: skip


def compiled(source: str) -> Template:
    """A template that is sure to end.

    Raises:
        InvalidRequest: it is not Jinja, or does what is refused; names the line.
    """
    from jinja2 import TemplateError, TemplateSyntaxError, nodes

    made = _environment()
    try:
        tree = made.parse(source)
        _check(list(tree.find_all(nodes.Node)), tree)
        return made.from_string(source)
    except TemplateSyntaxError as error:
        raise _refusal(f"line {error.lineno}: {error.message}") from None
    except (TemplateError, RecursionError, ValueError, OverflowError, SyntaxError) as error:
        raise _refusal(f"{type(error).__name__}: {error}"[:300]) from None


def rendered(template: Template, question: str, chunks: list[Mapping[str, Any]]) -> str:
    """The text for a question and its chunks.

    Raises:
        InvalidRequest: a name that does not exist, values that do not go together, or more than
            MAX_OUTPUT characters.
    """
    from jinja2 import TemplateError

    parts, size = [], 0
    try:
        for part in template.generate(question=question, chunks=chunks):
            size += len(part)
            if size > MAX_OUTPUT:
                raise _refusal(f"a prompt has more than {MAX_OUTPUT:,} characters")
            parts.append(part)
        text = "".join(parts)
        text.encode()  # a template may write half of a character, which nobody could read
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise _refusal(f"{type(error).__name__}: {error}"[:300]) from None
    return text


def _environment() -> Environment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            return attr in LOOP_FIELDS and type(obj).__name__ == "LoopContext"

    made = Sandbox(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    made.globals.clear()
    made.filters = {name: made.filters[name] for name in FILTERS}
    made.tests = {"defined": made.tests["defined"]}
    return made


def _check(found: list[nodes.Node], tree: nodes.Template) -> None:
    from jinja2 import nodes

    if len(found) > MAX_NODES:
        raise _refusal(f"it has {len(found):,} parts, the limit is {MAX_NODES}")
    if _depth(tree) > MAX_DEPTH:
        raise _refusal(f"more than {MAX_DEPTH} of its parts are inside each other")
    loops = {name for loop in tree.find_all(nodes.For) for name in _target(loop)}
    known = loops | _TAKEN
    listed = {id(loop.iter) for loop in tree.find_all(nodes.For)} | {
        id(made.node) for made in tree.find_all(nodes.Filter) if made.name == "length"
    }
    listed |= {id(test.test) for test in tree.find_all(nodes.If)}
    for node in found:
        where = f"line {node.lineno}"
        kind = type(node).__name__
        if kind not in _NODES:
            raise _refusal(f"{where}: {_WORDS.get(kind, kind)} is refused")
        if isinstance(node, nodes.Name) and node.name not in known:
            raise _refusal(f"{where}: there is no {node.name!r}; there are question and chunks")
        if isinstance(node, nodes.Filter) and node.name not in FILTERS:
            raise _refusal(f"{where}: the filter {node.name!r} is refused")
        if isinstance(node, nodes.Getattr | nodes.Getitem):
            _check_field(node, loops, where)
        if isinstance(node, nodes.For):
            _check_loop(node, where)
        if isinstance(node, nodes.Name) and node.name == "chunks" and id(node) not in listed:
            raise _refusal(f"{where}: chunks is a list: loop over it, or ask for chunks|length")


def _depth(tree: nodes.Template) -> int:
    depth, level = 0, list(tree.iter_child_nodes())
    while level:
        depth += 1
        level = [child for node in level for child in node.iter_child_nodes()]
    return depth


def _target(loop: nodes.For) -> Iterator[str]:
    from jinja2 import nodes

    yield from (name.name for name in loop.target.find_all(nodes.Name))
    if isinstance(loop.target, nodes.Name):
        yield loop.target.name


def _check_loop(loop: nodes.For, where: str) -> None:
    from jinja2 import nodes

    if not (isinstance(loop.iter, nodes.Name) and loop.iter.name == "chunks"):
        raise _refusal(f"{where}: a loop goes over chunks, and over nothing else")
    if not isinstance(loop.target, nodes.Name) or loop.target.name in _TAKEN:
        raise _refusal(f"{where}: a loop has one name of its own, as in `for chunk in chunks`")
    if loop.recursive or any(True for part in loop.body for _ in _loops(part)):
        raise _refusal(f"{where}: a loop inside a loop is refused")


def _loops(node: nodes.Node) -> Iterator[nodes.For]:
    from jinja2 import nodes

    if isinstance(node, nodes.For):
        yield node
    yield from node.find_all(nodes.For)


def _check_field(node: nodes.Getattr | nodes.Getitem, loops: set[str], where: str) -> None:
    from jinja2 import nodes

    owner = node.node.name if isinstance(node.node, nodes.Name) else ""
    if isinstance(node, nodes.Getattr):
        name: Any = node.attr
    else:
        name = node.arg.value if isinstance(node.arg, nodes.Const) else None
    allowed = LOOP_FIELDS if owner == "loop" else CHUNK_FIELDS if owner in loops else frozenset()
    if name not in allowed:
        raise _refusal(f"{where}: there is no field {name!r} of {owner or 'this'}")


_WORDS = {
    "Call": "a call",
    "Assign": "an assignment",
    "AssignBlock": "an assignment",
    "Macro": "a macro",
    "CallBlock": "a call",
    "FilterBlock": "a filter block",
    "Include": "an include",
    "Import": "an import",
    "FromImport": "an import",
    "Extends": "extends",
    "Block": "a block",
    "Mod": "%",
    "Mul": "multiplication",
    "Pow": "a power",
    "Concat": "~",
    "Slice": "a slice",
    "With": "with",
}


def _refusal(words: str) -> InvalidRequest:
    return InvalidRequest(f"`template.jinja`: {words}", field=_FIELD)
