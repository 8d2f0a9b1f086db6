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
    (?:(?<![\w)\]}%.])[-+](?:\\?[$\u20ac\u00a3\u00a5])?)?  # the sign of -5 and -$5, not of 3-5
    (?:
      # 1,234,567; not 1,2,3 and not 1,23; bounded, because each place is tried
      \d{1,3}(?:([,'_\ \u00a0\u2009\u202f])\d{3})(?:\1\d{3}){0,40}(?!\d|\1\d)
      |\d+
      |(?<![\w.])(?=\.\d)  # .5, but not ...72 and not No.5
    )
    (?:\.\d+)?(?:[eE][-+]?\d{1,4}(?!\w))?
    """,
    re.VERBOSE,
)
CUT_BEFORE = re.compile(
    r"""
    (?:
      \d[.,'_:]                      # 0,5, 1.000.000 and 12:30
      | \d\s*/\s*[-+]?               # 1 / 2
      | \d\*\*[-+]?                  # 2**10
      | [\^/_]\{?[-+]?               # 2^{10}
      | \}\{ | \\[dt]?frac\s*\{?
      | (?:\\sqrt|\bsqrt|\u221a)\s*[{(]?
      | \]                           # \sqrt[3]2
    )\Z
    """,
    re.VERBOSE,
)
CUT_BEHIND = re.compile(r"\s*\^|\*\*\d|[\u00b2\u00b3\u00b9\u2070-\u2079\u00bc-\u00be]")
"""A number with such marks around it is a part of another one: of `1/2`, `0,5`, `1.000.000`,
`2^{10}`, 7 squared, 3 and a half.
"""
POWER_OF_TEN = re.compile(
    r"(?<=\d)\s*(?:\u00d7|\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{([-+]?\d{1,4})\}|([-+]?\d{1,4}))"
)
"""A power of ten, as in `1.5 \\times 10^{3}`."""
GROUPING = {"{,}": ",", "\\,": "\u2009", "\\!": ""}
BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>[\w\\+-][^\s$]*))")
r"""`\boxed{7}`, and what is written for it: `\boxed 7`, up to white space or `$`."""
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
r"""Braces, and commands such as `\{`, which opens nothing."""
NAMED = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox|operatorname)\s*\{([^{}]*)\}")
GROUPED = re.compile(r"-?\d{1,3}(?:(?:,|\{,\})\d{3})+(?:\.\d+)?")
"""A number alone, such as `1,000`: not the interval (1,200)."""
LEFT_OUT = (
    *("\\left", "\\right", "\\!", "\\,", "\\;", "\\:", "\\ ", "~", "\\$", "$", "\\%", "%"),
    *("^{\\circ}", "^\\circ", "\u00b0"),
)
"""Marks that change the look of an answer and not its value."""
FRACTION = re.compile(r"\\[dt]frac")
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}|(?<=\d)\s+[A-Za-z]\s*\Z")
"""Two letters or more that are not a command, and the unit of `5 m`."""
MATH = MathProcesses()
atexit.register(MATH.close)


def exact(answer: str, truth: str) -> bool:
    """The answer is the truth, but for white space around both."""
    return answer.strip() == truth.strip()


def number(answer: str, truth: str) -> bool:
    """The last number of the answer is that of the truth. If the truth has `####` (GSM8K), only the
    text behind it counts.
    """
    expected = _last_number(truth.rpartition("####")[2])
    if expected is None:
        raise JobFailure(f"the row's answer holds no number: {truth!r:.100}")
    return _last_number(answer) == expected


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
    """The answer's last box, or else the answer, has the truth's value by math-verify: formulas,
    fractions, sets, intervals. Words and units are compared as words. False for an answer that
    takes too much time or memory.
    """
    if find_spec("math_verify") is None:
        raise JobFailure(f"the reward math needs the package math-verify: {install_line('math')}")
    formula = answer.translate(MINUS).strip()
    box, boxed_truth = _last_box(formula), _last_box(truth)
    if box is not None:
        formula = in_a_box(box)
        if not _may_be_equal(box, truth if boxed_truth is None else boxed_truth):
            return False
    try:  # a truth that cannot be compared with 0 is not a truth
        same = MATH.same(formula or "0", truth if "$" in truth else in_a_box(truth))
    except ValueError as e:
        if formula:
            return False
        raise JobFailure(
            f"the row's answer is not a formula to compare with: {e}: {truth!r:.100}"
        ) from e
    if same is None:
        raise JobFailure(
            f"the row's answer is not a formula that math-verify can read: {truth!r:.100}"
        )
    return same and bool(formula)


GRADERS: Mapping[str, Grader] = {"exact": exact, "number": number, "boxed": boxed, "math": math}
IN_A_BOX = (boxed, math)
"""Graders that want the answer in a box."""


def in_a_box(truth: str) -> str:
    return truth if BOX.search(truth) else f"\\boxed{{{truth}}}"


def _last_number(text: str) -> Decimal | None:
    """None without a number, and if the last one is a part of something that is not read."""
    text = text.translate(MINUS)
    for mark, plain in GROUPING.items():
        text = text.replace(mark, plain)
    text = POWER_OF_TEN.sub(lambda match: f"e{match.group(1) or match.group(2)}", text)
    matches = list(NUMBER.finditer(text))
    if not matches:
        return None
    last = matches[-1]
    if CUT_BEFORE.search(text, 0, last.start()) or CUT_BEHIND.match(text, last.end()):
        return None
    return Decimal(re.sub(r"[,'_\\$\u20ac\u00a3\u00a5\s]", "", last.group()))


def _may_be_equal(answer: str, truth: str) -> bool:
    """False where math-verify would take other words, other units or other brackets for equal."""
    words, expected = _words(answer), _words(truth)
    if words and expected and words != expected:
        return False
    ordered = truth.strip().startswith(("(", "\\left(")) and "," in truth
    return not ordered or "(" in answer or "[" in answer


def _words(text: str) -> list[str]:
    """The words and units in a formula, sorted. Products of letters count as words."""
    return sorted(match.group() for match in WORD.finditer(NAMED.sub(r" \1 ", text)))


def _last_box(text: str) -> str | None:
    r"""The content of the last box, as in `\boxed{7}` and `\boxed 7`. None without a box, or if it
    is cut off.
    """
    boxes = list(BOX.finditer(text))
    if not boxes:
        return None
    last = boxes[-1]
    if last["bare"]:
        return last["bare"].rstrip(".,;:!*")
    depth = 1
    for brace in BRACE.finditer(text, last.end()):
        if brace.group() == "{":
            depth += 1
        elif brace.group() == "}":
            depth -= 1
        if depth == 0:
            return text[last.end() : brace.start()]
    return None


def _plain(text: str) -> str:
    text = NAMED.sub(r"\1", FRACTION.sub(r"\\frac", text.translate(MINUS)))
    for mark in LEFT_OUT:
        text = text.replace(mark, "")
    text = "".join(text.split()).rstrip(".")
    if GROUPED.fullmatch(text):
        return re.sub(r"[,{}]", "", text)
    return text
