"""Finds all faults that can be planted into a module."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, PositionProvider

from mutants.operators import changed, is_left_out, spares_texts
from mutants.scope import named


@dataclass(frozen=True)
class Change:
    """Replaces the bytes `start` to `end` by `text`."""

    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The source with the change applied."""
        return source[: self.start] + self.text.encode() + source[self.end :]


@dataclass(frozen=True)
class Mutation:
    """One fault that can be planted into a function."""

    module: str
    """Relative to the repository."""
    function: str
    """The outermost function, as `Class.method`."""
    first_line: int
    """First line of that function, including decorators, as in its code object."""
    statement: int
    """First line of the innermost changed statement."""
    line: int
    change: Change
    was: str
    now: str
    """The changed lines, stripped and joined by one space."""


def mutations_of(path: Path) -> list[Mutation]:
    """All faults of a module in the order of its lines, without duplicates."""
    module, source = named(path), path.read_bytes()
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    visitor = _Visitor(module, source, wrapper.module, _Lines(source))
    wrapper.visit(visitor)
    found = {(one.function, one.line, one.now): one for one in visitor.found if one.was != one.now}
    return list(found.values())


class _Lines:
    """Functions and statements of a module, by line."""

    def __init__(self, source: bytes) -> None:
        tree = ast.parse(source)
        self._statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        self._functions = {
            node.lineno: min([node.lineno, *(each.lineno for each in node.decorator_list)])
            for node in self._statements
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }

    def first_line(self, line: int) -> int:
        """The first line of the function whose `def` is in this line, including decorators."""
        return self._functions[line]

    def statement(self, line: int) -> int:
        """The first line of the innermost statement that contains the line."""
        return max(
            node.lineno
            for node in self._statements
            if node.lineno <= line <= (node.end_lineno or node.lineno)
        )


class _Visitor(cst.CSTVisitor):
    """Visits the functions of a module and collects the possible changes."""

    METADATA_DEPENDENCIES = (PositionProvider, ByteSpanPositionProvider)

    def __init__(self, module: str, source: bytes, tree: cst.Module, lines: _Lines) -> None:
        super().__init__()
        self.found: list[Mutation] = []
        self._module, self._source, self._tree, self._lines = module, source, tree, lines
        self._names: list[str] = []
        self._function: tuple[str, int] | None = None
        self._inside: cst.FunctionDef | None = None

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Param):
            return False
        if isinstance(node, cst.ClassDef | cst.FunctionDef) and self._inside is None:
            self._enter(node)
        if is_left_out(node):
            return False
        if self._inside is not None:
            self._collect(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.ClassDef) and self._inside is None:
            self._names.pop()
        if original_node is self._inside:
            self._names.pop()
            self._inside = None

    def _enter(self, node: cst.ClassDef | cst.FunctionDef) -> None:
        self._names.append(node.name.value)
        if isinstance(node, cst.FunctionDef):
            self._inside = node
            line = self.get_metadata(PositionProvider, node.name).start.line
            self._function = ".".join(self._names), self._lines.first_line(line)

    def _collect(self, node: cst.CSTNode) -> None:
        position = self.get_metadata(PositionProvider, node, None)
        if position is None or self._function is None:
            return
        function, first_line = self._function
        for other in changed(node):
            if spares_texts(node, other):
                change, line = self._change(node, other), position.start.line
                was, now = _lines_changed(self._source, change)
                place = self._module, function, first_line, self._lines.statement(line), line
                self.found.append(Mutation(*place, change, was, now))

    def _change(self, node: cst.CSTNode, other: cst.CSTNode) -> Change:
        """The change that turns the node into the other one."""
        span = self.get_metadata(ByteSpanPositionProvider, node)
        start, end = span.start, span.start + span.length
        if self._tree.code_for_node(node).strip().encode() == self._source[start:end]:
            return Change(start, end, self._tree.code_for_node(other).strip())
        whole = cst.ensure_type(self._tree.deep_replace(node, other), cst.Module).bytes
        return _difference(self._source, whole)


def _difference(was: bytes, now: bytes) -> Change:
    start = next(
        (n for n, (a, b) in enumerate(zip(was, now, strict=False)) if a != b),
        min(len(was), len(now)),
    )
    shorter = min(len(was), len(now)) - start
    same = next((n for n in range(shorter) if was[-1 - n] != now[-1 - n]), shorter)
    return Change(start, len(was) - same, now[start : len(now) - same].decode())


def _lines_changed(source: bytes, change: Change) -> tuple[str, str]:
    """The lines that the change touches, before and after it, without those that stay the same."""
    first = source.rfind(b"\n", 0, change.start) + 1
    last = source.find(b"\n", change.end)
    rest = len(source) - (len(source) if last < 0 else last)
    changed = change.apply(source)
    was = source[first : len(source) - rest].decode().splitlines()
    now = changed[first : len(changed) - rest].decode().splitlines()
    return _joined(_only(was, now)), _joined(_only(now, was))


def _only(lines: list[str], others: list[str]) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, lines, others, autojunk=False)
    for tag, start, end, _, _ in matcher.get_opcodes():
        if tag != "equal":
            yield from lines[start:end]


def _joined(lines: Iterator[str]) -> str:
    return " ".join(line.strip() for line in lines)
