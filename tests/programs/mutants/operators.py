"""How code is changed: mutmut's operators and two of our own, and what is left out as a class.

Left out are what only people read (log calls, docstrings, any string with a space in it, and
arguments that are such strings), type annotations, `strict=` of zip, and what runs when a module
is imported (decorators, defaults of parameters, constants), since functions alone are swapped.
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
"""Conditions that no operator of mutmut's negates."""


def changed(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What the node could be instead, one change each."""
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            # Of strings, mutmut's others change the case alone, which is seen where any change is.
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
    # Without its call of super() a method could not take the place of the one that is there.
    return isinstance(call, cst.Call) and "super" not in _names(call.func)


def _names(func: cst.CSTNode) -> list[str]:
    """Of `a.b().c`: c, b, a."""
    if isinstance(func, cst.Attribute):
        return [func.attr.value, *_names(func.value)]
    if isinstance(func, cst.Call):
        return _names(func.func)
    return [func.value] if isinstance(func, cst.Name) else []


def is_left_out(node: cst.CSTNode) -> bool:
    """Neither the node nor anything in it is changed."""
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
    """As in `log.info(...)`."""
    names = _names(call.func)
    return len(names) > 1 and names[0] in _LOGGING and names[1].endswith("log")


def is_text(node: cst.CSTNode) -> bool:
    """A sentence for people, by its spaces."""
    if isinstance(node, cst.ConcatenatedString):
        return True
    if isinstance(node, cst.FormattedString):
        texts = [part.value for part in node.parts if isinstance(part, cst.FormattedStringText)]
        return any(" " in text for text in texts)
    return isinstance(node, cst.SimpleString) and " " in node.value


def spares_texts(node: cst.CSTNode, other: cst.CSTNode) -> bool:
    """The change is not one of a text, or of `strict=`, alone."""
    if isinstance(node, cst.Call) and isinstance(other, cst.Call):
        kept = {id(arg) for arg in other.args}
        gone = [arg for arg in node.args if id(arg) not in kept]
        return not any(is_left_out(arg) or is_text(arg.value) for arg in gone)
    if isinstance(node, cst.Assign | cst.AnnAssign):
        return node.value is None or not is_text(node.value)
    return True
