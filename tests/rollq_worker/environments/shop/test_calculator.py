"""The calculator: exact, and never evaluated as Python."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq_worker.environments.shop import calculator


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("129.45 + 17.20", "146.65"),
        ("(1 + 2) * -3", "-9.00"),
        ("0.1 + 0.2", "0.30"),
        ("1 / 3", "0.33"),
        ("-0.001", "0.00"),
        (f"{'(' * 30}1{')' * 30}", "1.00"),
        ("*".join(["9" * 9] * 10), f"{999999999**10}.00"),
    ],
)
def test_calculate(expression: str, value: str) -> None:
    assert calculator.calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "2 ** 3",
        "1 +",
        "1(2)",
        "(1, 2)",
        "1e9",
        "__import__('os')",
        "1 / 0",
        "1" * 101,
        "(" * 50 + ")" * 50,
        "\x00",
        "٣",
    ],
)
def test_what_is_not_calculated(expression: str) -> None:
    with pytest.raises(ValueError):
        calculator.calculate(expression)


@settings(max_examples=300, deadline=None)
@given(st.text("0123456789.+-*/() ", max_size=110))
def test_calculate_only_ever_raises_value_errors(expression: str) -> None:
    with suppress(ValueError):
        float(calculator.calculate(expression))
