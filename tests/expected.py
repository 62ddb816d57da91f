"""What a test compares with: string literals of comparisons, without comments, docstrings and other texts.

A literal counts if it is part of an assertion, of a comparison or of `match=`, or is bound to a name that is: by
an assignment, a loop, or a parameter of the test.
"""

import ast
from collections.abc import Iterator

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: str) -> list[_Function]:
    return [one for one in ast.walk(ast.parse(source)) if isinstance(one, _Function)]


def expected_texts(function: _Function) -> list[str]:
    bound = list(_bindings(function))
    wanted = list(_comparisons(function))
    done: set[int] = set()
    while wanted:
        node = wanted.pop()
        if id(node) in done:
            continue
        done.add(id(node))
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        wanted += [value for targets, value in bound if targets & names]
    nodes = [node for node in (*_comparisons(function), *(v for _, v in bound)) if id(node) in done]
    return [text for node in nodes for text in _texts(node)]


def _comparisons(function: _Function) -> Iterator[ast.AST]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Compare):
            yield node
        if isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value


def _bindings(function: _Function) -> Iterator[tuple[set[str], ast.AST]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield {name for target in node.targets for name in _names(target)}, node.value
        if isinstance(node, ast.For):
            yield _names(node.target), node.iter
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize":
            names, values = decorator.args[:2]
            parameters = {name.strip() for text in _texts(names) for name in text.split(",")}
            yield parameters, values


def _names(target: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}


def _texts(node: ast.AST) -> Iterator[str]:
    """Values in an f-string are left out."""
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value
        if isinstance(one, ast.JoinedStr):
            yield "".join(str(part.value) for part in one.values if isinstance(part, ast.Constant))
