"""A calculator that cannot be made to hang.

Its input is sampled text, so it evaluates no Python: only numbers, + - * / and parentheses. It has
no powers, because one sampled `9**9**9` would stop every episode of the process.
"""

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

LONGEST_EXPRESSION = 100
"""Longest expression in characters. This also bounds the size of the numbers and the depth of the
tree.
"""

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculate(expression: str) -> str:
    """The value with two decimals, exact until it is rounded. Raises ValueError in words for the
    policy.
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise ValueError(f"the expression is longer than {LONGEST_EXPRESSION} characters")
    if not expression.strip() or set(expression) - set("0123456789.+-*/() "):
        raise ValueError("only numbers, + - * / and parentheses can be calculated")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError:
        raise ValueError("the expression cannot be read") from None
    try:
        return _two_decimals(_value(tree.body))
    except ZeroDivisionError:
        raise ValueError("division by zero") from None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(repr(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
        return _value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        operation = _OPERATORS[type(node.op)]
        return operation(_value(node.left), _value(node.right))
    raise ValueError("only numbers, + - * / and parentheses can be calculated")


def _two_decimals(value: Fraction) -> str:
    cents = round(abs(value) * 100)
    sign = "-" if value < 0 and cents else ""
    return f"{sign}{cents // 100}.{cents % 100:02d}"
