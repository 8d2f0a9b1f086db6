"""What an answer to a question earns: `exact`, `number`, `boxed` and `math`, as
docs/environments.md says.

Each gets what the policy said, without its reasoning, and the truth, and returns whether the answer
earns its reward. It raises JobFailure for a truth that nothing can be compared with. This module
knows no rows and no files.
"""

import atexit
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from importlib.util import find_spec

from rollq.errors import JobFailure
from rollq.pip_extras import install_line
from rollq_worker.environments.math_process import MathProcesses

Grader = Callable[[str, str], bool]

MINUS = str.maketrans(
    {"\u2212": "-", "\uff0d": "-", "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-"}
)
"""Other signs that people and models write for a minus. A dash between two numbers is read as a
range all the same.
"""
NUMBER = re.compile(
    r"""
    (?:(?<![\w)\]}%.])[-+](?:\\?[$\u20ac\u00a3\u00a5])?)?      # the sign of -5 and -$5, not the dash of 3-5
    (?:\d{1,3}(?:([,'_\u00a0\u2009\u202f])\d{3})(?:\1\d{3})*(?!\d|\1\d)  # 1,234,567; not 1,2,3 and not 1,23
      |\d+|(?<![\w.])(?=\.\d))                             # .5, but not ...72 and not No.5
    (?:\.\d+)?(?:[eE][-+]?\d{1,4}(?!\w))?
    """,  # noqa: E501
    re.VERBOSE,
)
BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?=\S))")
NAMED = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox|operatorname)\s*\{([^{}]*)\}")
GROUPED = re.compile(r"-?\d{1,3}(?:(?:,|\{,\})\d{3})+(?:\.\d+)?")
"""A number alone, such as `1,000`: not the interval (1,200)."""
LEFT_OUT = (
    *("\\left", "\\right", "\\!", "\\,", "\\;", "\\:", "\\ ", "~", "\\$", "$", "\\%", "%"),
    *("^{\\circ}", "^\\circ", "\u00b0"),
)
"""What changes the look of an answer and not its value."""
FRACTION = re.compile(r"\\[dt]frac")
MATH = MathProcesses()
atexit.register(MATH.close)


def exact(answer: str, truth: str) -> bool:
    """The answer is the truth, but for white space around both."""
    return answer.strip() == truth.strip()


def number(answer: str, truth: str) -> bool:
    """The last number of the answer is that of the truth. What follows `####` in the truth counts
    alone (GSM8K).
    """
    said, right = _numbers(answer), _numbers(truth.rpartition("####")[2])
    if not right:
        raise JobFailure(f"the row's answer holds no number: {truth!r:.100}")
    return bool(said) and said[-1] == right[-1]


def boxed(answer: str, truth: str) -> bool:
    r"""The last \boxed{...} holds the truth, which may be in a box, too; both as texts. Without a
    closed box: no.
    """
    right = _plain(truth if (held := _last_box(truth)) is None else held)
    if not right:
        raise JobFailure(f"the row's answer has nothing in its box: {truth!r:.100}")
    said = _last_box(answer)
    return said is not None and _plain(said) == right


def math(answer: str, truth: str) -> bool:
    """The answer has the truth's value, as math-verify finds: formulas, fractions, sets, intervals.
    One that takes too much time or memory has not.
    """
    if find_spec("math_verify") is None:
        raise JobFailure(f"the reward math needs the package math-verify: {install_line('math')}")
    said = answer.translate(MINUS).strip()
    try:  # a truth that cannot be compared with 0 is no truth
        same = MATH.same(said or "0", truth if "$" in truth else in_a_box(truth))
    except ValueError as e:
        if said:
            return False
        raise JobFailure(
            f"the row's answer is no formula to compare with: {e}: {truth!r:.100}"
        ) from e
    if same is None:
        raise JobFailure(
            f"the row's answer is no formula that math-verify can read: {truth!r:.100}"
        )
    return same and bool(said)


GRADERS: Mapping[str, Grader] = {"exact": exact, "number": number, "boxed": boxed, "math": math}
IN_A_BOX = (boxed, math)
"""Those for which a perfect answer is in a box."""


def in_a_box(truth: str) -> str:
    return truth if BOX.search(truth) else f"\\boxed{{{truth}}}"


def _numbers(text: str) -> list[Decimal]:
    found = (match.group() for match in NUMBER.finditer(text.translate(MINUS)))
    return [
        Decimal(re.sub(r"[,'_\\$\u20ac\u00a3\u00a5\u00a0\u2009\u202f]", "", one)) for one in found
    ]


def _last_box(text: str) -> str | None:
    r"""What the last box holds, as in `\boxed{7}` and `\boxed 7`; None without a box, or when it is
    cut off.
    """
    found = None
    for found in BOX.finditer(text):  # noqa: B007 (the last one counts)
        pass
    if found is None:
        return None
    rest = text[found.end() :]
    if not found.group().endswith("{"):
        return rest[:1]
    depth = 1
    for at, char in enumerate(rest):
        depth += (char == "{") - (char == "}")
        if not depth:
            return rest[:at]
    return None


def _plain(text: str) -> str:
    text = NAMED.sub(r"\1", FRACTION.sub(r"\\frac", text.translate(MINUS)))
    for mark in LEFT_OUT:
        text = text.replace(mark, "")
    text = "".join(text.split()).rstrip(".")
    return re.sub(r"[,{}]", "", text) if GROUPED.fullmatch(text) else text
