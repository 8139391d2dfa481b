"""Replaces the code of loaded functions: by a fault, or by probes that report which statements run.

Modules are not imported again, so everything that refers to a function (a decorator, a property,
another module) runs its new code.
"""

from __future__ import annotations

import ast
import builtins
import functools
import gc
import importlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, cast

from mutants.mutations import Mutation
from mutants.scope import ROOT, module_name, named

_PROBE = "__mutants_probe__"
Place = tuple[str, int]
"""A function in its module: qualified name and first line."""
Statement = tuple[str, int]
"""A statement: its module's path relative to the repository, and its line."""


class Loaded:
    """The functions of some modules, found wherever they are referred to."""

    def __init__(self, files: Iterable[Path]) -> None:
        for path in files:
            importlib.import_module(module_name(path))
        names = {str(path): named(path) for path in files}
        self._sources = {names[str(path)]: path.read_bytes() for path in files}
        self._functions: dict[str, dict[Place, list[FunctionType]]] = {}
        self._caches: list[functools._lru_cache_wrapper[Any]] = []
        gc.unfreeze()  # what was frozen is not among the objects
        for found in gc.get_objects():
            if isinstance(found, functools._lru_cache_wrapper):
                self._caches.append(found)
            elif isinstance(found, FunctionType) and (
                name := names.get(found.__code__.co_filename)
            ):
                places = self._functions.setdefault(name, {})
                places.setdefault(_place(found.__code__), []).append(found)

    def plant(self, mutation: Mutation) -> None:
        """Replace the function's code by code with this fault."""
        source = mutation.change.apply(self._sources[mutation.module])
        path = str(ROOT / mutation.module)
        tree = compile(source, path, "exec", dont_inherit=True)
        place = (mutation.function, mutation.first_line)
        codes = [code for code in _codes(tree) if _place(code) == place]
        for function in self._functions[mutation.module][place]:
            function.__code__ = codes[-1]
        self.forget()

    def forget(self) -> None:
        """Empty the caches of functions."""
        for one in self._caches:
            one.cache_clear()

    def probe(self, module: str, told: Callable[[Statement], None]) -> None:
        """Make each statement of the module's functions report itself before it runs."""
        setattr(builtins, _PROBE, told)
        tree = _Probes(module).visit(ast.parse(self._sources[module]))
        ast.fix_missing_locations(tree)
        for code in _codes(compile(tree, str(ROOT / module), "exec", dont_inherit=True)):
            for function in self._functions.get(module, {}).get(_place(code), []):
                if function.__code__.co_freevars == code.co_freevars:
                    function.__code__ = code


def _place(code: CodeType) -> Place:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


class _Probes(ast.NodeTransformer):
    """Inserts a call before each statement of a function."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._depth and not isinstance(node, ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    setattr(node, name, list(self._probed(block)))
        return node

    def _probed(self, block: list[ast.stmt]) -> Iterator[ast.stmt]:
        for statement in block:
            yield cast(ast.stmt, self._probe(statement))
            yield statement

    def _probe(self, statement: ast.stmt) -> Any:
        place = [ast.Constant(self._module), ast.Constant(statement.lineno)]
        told = [ast.Tuple(cast(list[ast.expr], place), ast.Load())]
        call = ast.Call(ast.Name(_PROBE, ast.Load()), cast(list[ast.expr], told), [])
        return ast.copy_location(ast.Expr(call), statement)
