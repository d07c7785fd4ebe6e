"""Rules for every definition in the package: documented, short, with few parameters, named once; examples run."""

import ast
import doctest
import functools
import importlib
from collections import defaultdict
from pathlib import Path

import pytest

import fedlane
from fedlane.scheduling import registry

ROOT = Path(fedlane.__file__).parent
TREES = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MAX_LINES = 60
MAX_PARAMETERS = 10


def public_definitions(node, prefix=""):
    """Public classes and functions of a module or class, as (name, node), methods included."""
    for child in node.body:
        if isinstance(child, (ast.ClassDef, *FUNCTIONS)) and not child.name.startswith("_"):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from public_definitions(child, f"{prefix}{child.name}.")


@functools.cache
def commands():
    """Names of functions that are registered as commands by a call: ``app.command(...)(function)``."""
    calls = (node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        argument.id
        for call in calls
        if isinstance(call.func, ast.Call) and ast.unparse(call.func.func).endswith(".command")
        for argument in call.args
        if isinstance(argument, ast.Name)
    }


def is_exempt(path, function):
    """Whether a function's length follows from something else: a command from its options, a kernel from its loops."""
    decorators = [ast.unparse(decorator).split("(")[0] for decorator in function.decorator_list]
    is_command = any(name.endswith((".command", ".callback")) for name in decorators) or function.name in commands()
    return bool({"kernel", "part", "triton.jit"} & set(decorators)) or (path.parts[0] == "cli" and is_command)


def limited_functions():
    """Every function to which the limits apply, as (place, node)."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS) and not is_exempt(path, node):
                yield f"{path}:{node.lineno} {node.name}", node


def test_every_public_definition_has_a_docstring():
    missing = [str(path) for path, tree in TREES.items() if tree.body and not ast.get_docstring(tree)]
    for path, tree in TREES.items():
        undocumented = ((name, node) for name, node in public_definitions(tree) if not ast.get_docstring(node))
        missing += [f"{path}:{node.lineno} {name}" for name, node in undocumented]
    assert not missing, "\n".join(missing)


def test_no_function_is_longer_than_a_screen():
    lengths = {place: node.end_lineno - node.lineno + 1 for place, node in limited_functions()}
    too_long = [f"{place}: {length} lines" for place, length in lengths.items() if length > MAX_LINES]
    assert not too_long, "\n".join(too_long)


def test_no_function_has_too_many_parameters():
    too_many = []
    for place, node in limited_functions():
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > MAX_PARAMETERS:
            too_many.append(f"{place}: {count} parameters")
    assert not too_many, "\n".join(too_many)


def test_every_class_name_is_unique():
    places = defaultdict(list)
    for path, tree in TREES.items():
        for name, node in public_definitions(tree):
            if isinstance(node, ast.ClassDef):
                places[name].append(str(path))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_every_module_name_is_unique():
    """A module of `cli` may share its name with what it puts on the command line, as `cli/reproduce.py` does."""
    for in_cli in (True, False):
        places = defaultdict(list)
        for path in TREES:
            if path.stem != "__init__" and (path.parts[0] == "cli") == in_cli:
                places[path.stem].append(str(path))
        assert not {name: paths for name, paths in places.items() if len(paths) > 1}


@pytest.mark.parametrize("path", [path for path in TREES if ">>> " in (ROOT / path).read_text()], ids=str)
def test_the_examples_in_docstrings_run(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_policies", dict(registry._policies))  # examples may register policies
    name = ".".join(("fedlane", *path.with_suffix("").parts)).removesuffix(".__init__")
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
