"""Sums for the desk: numbers, + - * / and brackets, exact decimals. Text is parsed into a tree of sums, never run."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow

from understudy.errors import ToolError

LONGEST = 200
_SUM = re.compile(r"[\d\s.+\-*/()]+")
_EXACT = Context(prec=28, Emax=30, Emin=-30, traps=[DivisionByZero, InvalidOperation, Overflow])
_BINARY: Mapping[type[ast.operator], Callable[[Decimal, Decimal], Decimal]] = {
    ast.Add: _EXACT.add,
    ast.Sub: _EXACT.subtract,
    ast.Mult: _EXACT.multiply,
    ast.Div: _EXACT.divide,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Decimal], Decimal]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}


def calculated(expression: str) -> str:
    """The value of a sum, rounded to cents. Anything else is a `ToolError`."""
    text = expression.replace("$", "").strip()
    if len(text) > LONGEST or not _SUM.fullmatch(text):
        raise ToolError(f"an expression has at most {LONGEST} characters: digits, + - * / and brackets")
    try:
        return f"{_value(ast.parse(text, mode='eval').body):.2f}"
    except (SyntaxError, ArithmeticError) as e:
        raise ToolError(f"{expression!r} has no value: {type(e).__name__}") from e


def _value(node: ast.expr) -> Decimal:
    match node:
        case ast.Constant(value=int() | float() as number):
            return _EXACT.create_decimal(str(number))
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op, operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
    raise ToolError("only + - * / and brackets can be calculated")
