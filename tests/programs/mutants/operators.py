"""The mutation operators: mutmut's and two of our own, and the code that is never changed.

Never changed are texts that only people read (log calls, docstrings, strings with a space, and such
strings as arguments), type annotations, `strict=` of zip, and code that runs when a module is
imported (decorators, default values of parameters, constants), since only functions are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import libcst as cst
from mutmut.mutation.mutators import mutation_operators, operator_string

_LOGGING = ("debug", "info", "warning", "error", "exception")
_UNTOUCHED_CALLS = ("len", "isinstance", "cast")
_CONDITIONS = (cst.If, cst.While, cst.CompIf)
_BARE = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.NamedExpr, cst.Await)
"""Kinds of conditions that no mutmut operator negates."""


def changed(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yields the alternatives to a node, each with one change."""
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            # mutmut's other changes alter only the case: tests that notice this notice those.
            yield from islice(operator(node), 1 if operator is operator_string else None)
    if isinstance(node, _CONDITIONS) and isinstance(node.test, _BARE):
        yield node.with_changes(test=_negated(node.test))
    if isinstance(node, cst.Expr) and _is_plain_call(node.value):
        yield cst.Pass()


def _negated(test: cst.BaseExpression) -> cst.BaseExpression:
    inside = test
    if isinstance(test, cst.NamedExpr) and not test.lpar:
        inside = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(cst.Not(), inside)


def _is_plain_call(value: cst.BaseExpression) -> bool:
    call = value.expression if isinstance(value, cst.Await) else value
    # A method without its call of super() cannot replace the original.
    return isinstance(call, cst.Call) and "super" not in _names(call.func)


def _names(func: cst.CSTNode) -> list[str]:
    """The names in a call, from the end: for `a.b().c`, c, b, a."""
    if isinstance(func, cst.Attribute):
        return [func.attr.value, *_names(func.value)]
    if isinstance(func, cst.Call):
        return _names(func.func)
    return [func.value] if isinstance(func, cst.Name) else []


def is_left_out(node: cst.CSTNode) -> bool:
    """Whether neither the node nor anything in it is to be changed."""
    match node:
        case cst.Annotation() | cst.Decorator() | cst.ConcatenatedString():
            return True
        case cst.Expr(value=cst.SimpleString()):
            return True
        case cst.Call(func=cst.Name(value=name)):
            return name in _UNTOUCHED_CALLS
        case cst.Call():
            return is_log_call(node)
        case cst.Arg(keyword=cst.Name(value="strict")):
            return True
        case cst.Expr(value=cst.Call() as call):
            return is_log_call(call)
    return is_text(node)


def is_log_call(call: cst.Call) -> bool:
    """Whether it is a call like `log.info(...)`."""
    names = _names(call.func)
    return len(names) > 1 and names[0] in _LOGGING and names[1].endswith("log")


def is_text(node: cst.CSTNode) -> bool:
    """Whether a string is text for people, which is assumed if it contains a space."""
    if isinstance(node, cst.ConcatenatedString):
        return True
    if isinstance(node, cst.FormattedString):
        texts = [part.value for part in node.parts if isinstance(part, cst.FormattedStringText)]
        return any(" " in text for text in texts)
    return isinstance(node, cst.SimpleString) and " " in node.value


def spares_texts(node: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Whether the change concerns more than a text or `strict=`."""
    if isinstance(node, cst.Call) and isinstance(other, cst.Call):
        kept = {id(arg) for arg in other.args}
        gone = [arg for arg in node.args if id(arg) not in kept]
        return not any(is_left_out(arg) or is_text(arg.value) for arg in gone)
    if isinstance(node, cst.Assign | cst.AnnAssign):
        return node.value is None or not is_text(node.value)
    return True
