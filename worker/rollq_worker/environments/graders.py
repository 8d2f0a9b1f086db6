"""Graders of an answer to a question: `exact`, `number`, `boxed` and `math`.

docs/environments.md describes them. Each gets the policy's words without its reasoning, and the
truth. It returns True if the answer earns its reward, and raises JobFailure for a truth that no
answer can be compared with. This module knows no rows and no files.
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
"""Marks that change the look of an answer and not its value."""
FRACTION = re.compile(r"\\[dt]frac")
MATH = MathProcesses()
atexit.register(MATH.close)


def exact(answer: str, truth: str) -> bool:
    """The answer is the truth, but for white space around both."""
    return answer.strip() == truth.strip()


def number(answer: str, truth: str) -> bool:
    """The last number of the answer is that of the truth. If the truth has `####` (GSM8K), only the
    text behind it counts.
    """
    expected = _numbers(truth.rpartition("####")[2])
    if not expected:
        raise JobFailure(f"the row's answer holds no number: {truth!r:.100}")
    numbers = _numbers(answer)
    return bool(numbers) and numbers[-1] == expected[-1]


def boxed(answer: str, truth: str) -> bool:
    r"""The last \boxed{...} holds the text of the truth, which may be in a box, too. False without
    a closed box.
    """
    boxed_truth = _last_box(truth)
    expected = _plain(truth if boxed_truth is None else boxed_truth)
    if not expected:
        raise JobFailure(f"the row's answer has nothing in its box: {truth!r:.100}")
    box = _last_box(answer)
    return box is not None and _plain(box) == expected


def math(answer: str, truth: str) -> bool:
    """The answer has the truth's value by math-verify: formulas, fractions, sets, intervals. False
    for an answer that takes too much time or memory.
    """
    if find_spec("math_verify") is None:
        raise JobFailure(f"the reward math needs the package math-verify: {install_line('math')}")
    formula = answer.translate(MINUS).strip()
    try:  # a truth that cannot be compared with 0 is no truth
        same = MATH.same(formula or "0", truth if "$" in truth else in_a_box(truth))
    except ValueError as e:
        if formula:
            return False
        raise JobFailure(
            f"the row's answer is no formula to compare with: {e}: {truth!r:.100}"
        ) from e
    if same is None:
        raise JobFailure(
            f"the row's answer is no formula that math-verify can read: {truth!r:.100}"
        )
    return same and bool(formula)


GRADERS: Mapping[str, Grader] = {"exact": exact, "number": number, "boxed": boxed, "math": math}
IN_A_BOX = (boxed, math)
"""Graders that want the answer in a box."""


def in_a_box(truth: str) -> str:
    return truth if BOX.search(truth) else f"\\boxed{{{truth}}}"


def _numbers(text: str) -> list[Decimal]:
    marks = r"[,'_\\$\u20ac\u00a3\u00a5\u00a0\u2009\u202f]"
    matches = NUMBER.finditer(text.translate(MINUS))
    return [Decimal(re.sub(marks, "", match.group())) for match in matches]


def _last_box(text: str) -> str | None:
    r"""The content of the last box, as in `\boxed{7}` and `\boxed 7`. None without a box, or if it
    is cut off.
    """
    boxes = list(BOX.finditer(text))
    if not boxes:
        return None
    rest = text[boxes[-1].end() :]
    if not boxes[-1].group().endswith("{"):
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
    if GROUPED.fullmatch(text):
        return re.sub(r"[,{}]", "", text)
    return text
