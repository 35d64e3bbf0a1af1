"""Make the mutants of a module: copies that differ from it in one spot.

mutmut leaves module constants and defaults of data classes alone, which is where the recipes keep their papers'
constants, and has no dropped statements; cosmic-ray starts a process per mutant, which here means to import torch each
time. So the changes are made on the syntax tree here.

Left alone: annotations, decorators, docstrings, the words of an error (that it is raised is not), `strict` of `zip`,
and what stands under `if __name__ == "__main__"` or `if TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import copy
import difflib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin"}
STATEMENTS = (ast.Assign, ast.AugAssign, ast.Raise, ast.Expr, ast.Return, ast.Continue)
GUARDS = ("__name__ == '__main__'", "TYPE_CHECKING")


class Mutant(NamedTuple):
    """One change: the line it begins on, the function around it, the code there before and after, the whole source.

    `function` is empty outside of functions; `was` and `becomes` are as `ast.unparse` writes them.
    """

    line: int
    function: str
    was: str
    becomes: str
    source: str


def changes(node: Any, bound_once: frozenset[str]) -> Iterator[Callable[[Any], None]]:
    """The changes that can be made at a node, each a function that makes it in a copy of the node.

    The only assignment to a name is not dropped: whatever reads the name would notice.
    """
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            for other in SWAPS.get(type(operator), ()):
                yield lambda n, i=i, o=other: n.ops.__setitem__(i, o())
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        for other in SWAPS.get(type(node.op), ()):
            yield lambda n, o=other: setattr(n, "op", o())
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield lambda n: setattr(n, "value", not n.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield lambda n: setattr(n, "value", n.value + 1)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    elif isinstance(node, ast.comprehension):
        for i in range(len(node.ifs)):
            yield lambda n, i=i: n.ifs.__setitem__(i, ast.UnaryOp(ast.Not(), n.ifs[i]))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        # Two inversions are the value itself, for arrays and truth values alike.
        yield lambda n: setattr(n, "operand", ast.UnaryOp(type(n.op)(), n.operand))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield lambda n: setattr(n, "op", ast.UAdd())
    elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
        yield lambda n: setattr(n, "id", NAMES[n.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield lambda n: setattr(n, "attr", NAMES[n.attr])
    if isinstance(node, ast.Module | ast.ClassDef):
        return
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        for i, statement in enumerate(block if isinstance(block, list) else []):
            if isinstance(statement, STATEMENTS) and not _is_docstring(statement) and not _binds(statement, bound_once):
                yield lambda n, f=field, i=i: getattr(n, f).__setitem__(i, ast.Pass())


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module, in the order of the syntax tree's walk, none of them twice."""
    tree = ast.parse(source)
    original = ast.unparse(tree)
    functions = _functions(tree)
    left_alone = set(_left_alone(tree))
    bound_once = _bound_once(tree)
    found: dict[str, Mutant] = {}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in left_alone:
            continue
        for change in changes(node, bound_once):
            changed = copy.deepcopy(tree)
            change(list(ast.walk(changed))[number])
            text = ast.unparse(ast.fix_missing_locations(changed))
            if text == original or text in found:
                continue
            was, becomes, unparsed_line = _difference(original, text)
            line = _line_in_source(tree, unparsed_line, original)
            found[text] = Mutant(line, functions.get(line, ""), was, becomes, text)
    return list(found.values())


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _bound_once(tree: ast.Module) -> frozenset[str]:
    """The names that a module binds in one place only."""
    stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    counts = Counter(stored + [n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)])
    return frozenset(name for name, count in counts.items() if count == 1)


def _binds(statement: ast.stmt, names: frozenset[str]) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(node, ast.Name) and node.id in names for target in targets for node in ast.walk(target))


def _left_alone(tree: ast.Module) -> Iterator[int]:
    """Identities of the nodes that no mutant touches."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += getattr(node, "decorator_list", [])
        if isinstance(node, ast.Raise):
            parts += [node.exc, node.cause]
        if isinstance(node, ast.keyword) and node.arg == "strict":
            parts.append(node.value)
        if isinstance(node, ast.If) and ast.unparse(node.test) in GUARDS:
            parts.append(node)
        for part in parts:
            if isinstance(part, ast.AST):
                yield from map(id, ast.walk(part))


def _functions(tree: ast.Module) -> dict[int, str]:
    """The innermost function of each line of a module, with the names of what it stands in."""
    functions: dict[int, str] = {}

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{outer}.{child.name}".lstrip(".")
                functions.update(dict.fromkeys(range(child.lineno, (child.end_lineno or child.lineno) + 1), name))
            visit(child, name)

    visit(tree, "")
    return functions


def _difference(before: str, after: str) -> tuple[str, str, int]:
    """The lines that differ in two sources, each side in one line, and the first such line's number in the former."""
    a, b = before.splitlines(), after.splitlines()
    blocks = [code for code in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes() if code[0] != "equal"]
    first, last = blocks[0], blocks[-1]
    was, becomes = a[first[1] : last[2]], b[first[3] : last[4]]
    return " ".join(line.strip() for line in was), " ".join(line.strip() for line in becomes), first[1] + 1


def _line_in_source(tree: ast.Module, unparsed_line: int, unparsed: str) -> int:
    """The line of a module's source at which the statement of a line of its unparsed form begins."""
    line = 1
    for node, twin in zip(ast.walk(tree), ast.walk(ast.parse(unparsed)), strict=True):
        if isinstance(twin, ast.stmt) and twin.lineno <= unparsed_line <= (twin.end_lineno or twin.lineno):
            line = node.lineno  # type: ignore[attr-defined]
    return line
