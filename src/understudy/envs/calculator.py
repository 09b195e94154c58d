"""Calculator tool: numbers, + - * / and parentheses in exact decimals. The text is parsed, never executed."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow

from understudy.core.errors import ToolError

MAX_EXPRESSION_LENGTH = 200
_SUM = re.compile(r"[\d\s.+\-*/()]+")
_EXACT = Context(prec=28, Emax=30, Emin=-30, traps=[DivisionByZero, InvalidOperation, Overflow])
_BINARY: Mapping[type[ast.operator], Callable[[Decimal, Decimal], Decimal]] = {
    ast.Add: _EXACT.add,
    ast.Sub: _EXACT.subtract,
    ast.Mult: _EXACT.multiply,
    ast.Div: _EXACT.divide,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Decimal], Decimal]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}


def evaluate_expression(expression: str) -> str:
    """Return the value of an expression, rounded to cents. Raise `ToolError` for anything else."""
    text = expression.replace("$", "").strip()
    if len(text) > MAX_EXPRESSION_LENGTH or not _SUM.fullmatch(text):
        raise ToolError(
            f"an expression can have up to {MAX_EXPRESSION_LENGTH} characters: digits, + - * / and parentheses"
        )
    try:
        return f"{_value(ast.parse(text, mode='eval').body):.2f}"
    except (SyntaxError, ArithmeticError) as e:
        raise ToolError(f"{expression!r} cannot be calculated: {type(e).__name__}") from e


def _value(node: ast.expr) -> Decimal:
    match node:
        case ast.Constant(value=int() | float() as number):
            return _EXACT.create_decimal(str(number))
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op, operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
    raise ToolError("only + - * / and parentheses are supported")
