"""The user's code that a result depends on: digests of the files that define a policy or a model.

A policy's file may import others, so the user's modules that it imports are digested as well, and those that they
import. Modules of Python, of FedLane and of installed packages are not followed: for these, raise `Policy.version`.
"""

import ast
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType

from fedlane.validate import InputError

_PACKAGE = Path(__file__).parents[2]
_INSTALLED = tuple(Path(path) for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib")))
_loaded: dict[str, str] = {}
"""Digests of modules of this process, when they were first digested."""


def code_digests(module: str) -> dict[str, str]:
    """Return digests of a module's file and of the user's modules that it imports, by module name.

    Raises:
        InputError: A file has changed since this process loaded it, so that it does not describe what would run.
    """
    digests: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if name in digests or path is None or (name != module and not _is_the_users(path)):
            continue
        content = path.read_bytes()
        digests[name] = hashlib.sha256(content).hexdigest()
        if name in sys.modules and _loaded.setdefault(name, digests[name]) != digests[name]:
            raise InputError(f"{path.name} has changed since it was loaded: start Python again")
        waiting += _imports(content, name, path)
    return digests


def class_digests(policy_class: type) -> dict[str, str]:
    """Return digests of the code of a class: the files of its own and its bases' modules, FedLane's left out.

    A class without a file, such as one that was typed into a notebook, is digested by its compiled methods.

    Raises:
        InputError: A file has changed since this process loaded it.
    """
    digests: dict[str, str] = {}
    for base in policy_class.__mro__:
        if base.__module__.partition(".")[0] in ("fedlane", *sys.stdlib_module_names) and base.__module__ != "__main__":
            continue
        digests |= code_digests(base.__module__) or {f"{base.__module__}.{base.__qualname__}": _compiled(base)}
    return digests


def check_code(digests: Mapping[str, str]) -> None:
    """Raise `InputError` if the user's code here is not the code that a batch was planned with."""
    for name, digest in digests.items():
        path = _source(name)
        if path is not None and hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise InputError(f"{name} is not the code that this batch was planned with: {path.name} has changed")


def _source(module: str) -> Path | None:
    """Return the source file of a module, loaded or not; None if it has none."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None and module not in sys.modules:
        sys.path.insert(0, "")  # find a file in the current folder, as the import of a model does
        try:
            spec = importlib.util.find_spec(module)
            path = None if spec is None else spec.origin
        except (ImportError, ValueError, AttributeError):
            path = None
        finally:
            sys.path.remove("")
    source = None if path is None else Path(path)
    return source if source is not None and source.suffix == ".py" and source.is_file() else None


def _is_the_users(path: Path) -> bool:
    """Whether a file belongs neither to FedLane nor to Python or an installed package."""
    resolved = path.resolve()
    return not any(resolved.is_relative_to(folder) for folder in (_PACKAGE, *_INSTALLED))


def _imports(content: bytes, module: str, path: Path) -> Iterator[str]:
    """Yield the names of modules that a source file may import."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _compiled(defined: type) -> str:
    """Digest of the compiled methods of a class."""
    codes = [getattr(value, "__code__", None) for value in vars(defined).values()]
    text = "".join(_code_text(code) for code in codes if isinstance(code, CodeType))
    return hashlib.sha256(text.encode()).hexdigest()


def _code_text(code: CodeType) -> str:
    constants = [_code_text(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts]
    return f"{code.co_name} {code.co_code.hex()} {constants} {code.co_names}"
