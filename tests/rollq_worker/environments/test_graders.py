"""What an answer earns, as docs/environments.md says."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from rollq.errors import JobFailure
from rollq_worker.environments import graders
from rollq_worker.environments.graders import GRADERS, IN_A_BOX, in_a_box, math
from rollq_worker.environments.math_process import MathProcesses

MINUS = "\u2212"

NUMBERS = [
    ("First 3, then 1,234.50", "x #### 1234.5", True),
    ("about 5", "4 #### 5", True),
    ("4", "4 #### 5", False),
    ("minus -7.", "-7", True),
    ("none", "5", False),
    (".5", "0.50", True),
    (f"x = {MINUS}5", "-5", True),
    (f"x = {MINUS}5", "5", False),
    ("(-7)", "-7", True),
    ("costs $-3", "-3", True),
    ("+7", "7", True),
    ("The answer is 1e3", "1000", True),
    ("1.5e-3", "0.0015", True),
    ("1e9999", "1e9999", True),
    ("The roots are 1,2,3", "3", False),
    ("The roots are 1, 2, 3", "3", True),
    ("1,23", "123", False),
    ("1,234,56", "56", False),
    ("9{,}500", "9500", True),
    ("9{,}500", "500", False),
    ("1 000", "1000", True),
    ("1\\,000", "1000", True),
    ("0,5", "5", False),
    ("1.234,5", "5", False),
    ("1.000.000", "0", False),
    ("3 1/2", "2", False),
    ("2^10", "10", False),
    ("2^{10}", "10", False),
    ("7\u00b2", "7", False),
    (r"\frac{3}{4}", "4", False),
    (r"\frac34", "34", False),
    (r"\sqrt{2}", "2", False),
    (r"\sqrt 2", "2", False),
    ("sqrt(2)", "2", False),
    ("\u221a2", "2", False),
    ("3 / 4", "4", False),
    ("at 12:30", "30", False),
    ("Answer: 30", "30", True),
    ("2**10", "10", False),
    ("3\u00bd", "3", False),
    ("It is **10**", "10", True),
    ("1.5\u00d710^3", "1500", True),
    (r"2 \times 10^{-5} m", "0.00002", True),
    ("5 km/h", "5", True),
    ("1\u202f000", "1000", True),
    ("$1,000$", "1000", True),
    ("3-5", "5", True),
    ("between 3\u20135 apples", "5", True),
    ("x-5", "5", True),
    ("The answer is...72", "72", True),
    ("No.5", "5", True),
    ("The balance is -$5.", "-5", True),
    (f"It is {MINUS}\u20ac1,200", "-1200", True),
    ("-\\$5", "-5", True),
    ("He has 5-$3 left", "3", True),
]
BOXES = [
    (r"so \boxed{3} no, \boxed{\frac{1}{2}}.", r"\frac{1}{2}", True),
    (r"\boxed{\dfrac{1}{2}}", r"It is $\boxed{\tfrac{1}{2}}$", True),
    (r"\boxed{ \left( 1, 2 \right) }", "(1,2)", True),
    (r"\boxed{4}", "3", False),
    ("72", "72", False),
    (r"so it is \boxed{72", "72", False),
    (r"\boxed{72} or \boxed{72", "72", False),
    (r"\boxed {72}", "72", True),
    (r"\boxed 7", "7", True),
    (r"\boxed 12", "12", True),
    (r"\boxed 12", "1", False),
    (r"so **\boxed 12**.", "12", True),
    (r"\boxed{\frac{1}{2}}", r"It is $\boxed\frac{1}{2}$.", True),
    (r"\boxed{72}, as asked in \boxed.", "72", True),
    (r"\boxed{\left\{x\right.}", r"\left\{x\right.", True),
    (r"\boxed{\}}", r"\}", True),
    (r"\fbox{72}", "72", True),
    (r"\boxed{\text{Paris}}", "Paris", True),
    (r"\boxed{1,000}", "1000", True),
    (r"\boxed{1{,}000}", "1000", True),
    (r"\boxed{(1,200)}", "(1200)", False),
    (r"\boxed{90^\circ}", "90", True),
    (r"\boxed{90^{\circ}}", "90", True),
    (r"\boxed{50\%}", "50", True),
    (r"\boxed{-3}", f"{MINUS}3", True),
    (r"\boxed{}", "x", False),
]
FORMULAS = [
    (r"\boxed{0.5}", "1/2", True),
    (r"\boxed{10^3}", "1000", True),
    (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", True),
    (r"$\frac{3}{4}$", "0.75", True),
    (f"x = {MINUS}5", "-5", True),
    ("4", "5", False),
    (r"so it is \boxed{72", "72", False),
    ("", "72", False),
    (" ", "0", False),
    (r"\boxed{9^{9^{9^{9}}}}", "72", False),
    (r"\boxed{10^{10^{10}}}", "72", False),
    ("(" * 5000, "72", False),
    (r"\boxed{6} no, \boxed{7}", "7", True),
    (r"\boxed{6} no, \boxed{7}", "6", False),
    (r"\boxed{6} no, \boxed{7}", "6,7", False),
    (r"\boxed{cat}", "act", False),
    (r"\boxed{\text{No}}", r"\text{On}", False),
    (r"\boxed{\text{even}}", r"\text{even}", True),
    (r"\boxed{\text{(B)}}", "B", True),
    (r"\boxed{5 m}", "5 km", False),
    (r"\boxed{5 \text{ cm}}", "5", True),
    (r"\boxed{\{1,2\}}", "(1,2)", False),
    (r"\boxed{2,1}", "(1,2)", False),
    (r"\boxed{\left(1,2\right)}", "(1,2)", True),
    (r"\boxed{xy+1}", "1+xy", True),
    (r"\boxed{10^{-20}}", r"3 \cdot 10^{-20}", False),
    (r"\boxed{\frac{1}{2006!}}", r"\frac{1}{2004!}", False),
    (r"\boxed{0.3333333}", r"\frac13", True),
    (r"\boxed{\infty}", r"\infty", True),
    (r"\boxed{-\infty}", r"\infty", False),
]


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[MathProcesses]:
    with pytest.MonkeyPatch.context() as patch, closing(MathProcesses(limit_s=0.5)) as processes:
        patch.setattr(graders, "MATH", processes)
        yield processes


@pytest.mark.parametrize(
    ("grader", "answer", "truth", "earns"),
    [
        ("exact", " Paris\n", "Paris", True),
        ("exact", "paris", "Paris", False),
        *(("number", *row) for row in NUMBERS),
        *(("boxed", *row) for row in BOXES),
        *(("math", *row) for row in FORMULAS),
    ],
)
def test_an_answer_earns_its_reward(grader: str, answer: str, truth: str, earns: bool) -> None:
    assert GRADERS[grader](answer, truth) is earns


@pytest.mark.parametrize(
    ("grader", "truth", "says"),
    [
        ("number", "5 #### none", "holds no number"),
        ("boxed", r"\boxed{ }", "nothing in its box"),
        ("math", "$$", "not a formula that math-verify can read"),
        ("math", "9^{9^{9^{9}}}", "not a formula to compare with"),
    ],
)
def test_a_truth_that_nothing_can_be_compared_with(grader: str, truth: str, says: str) -> None:
    with pytest.raises(JobFailure, match=says):
        GRADERS[grader]("", truth)


def test_a_comparison_that_others_have_ended_is_no_wrong_answer(quick: MathProcesses) -> None:
    assert math("72", "72")
    quick._idle[-1].kill()
    with pytest.raises(RuntimeError, match="ended with -9"):
        math("72", "72")
    assert math("72", "72")


def test_a_comparison_does_not_wait_for_a_slow_one(quick: MathProcesses) -> None:
    assert math("72", "72")
    process = quick._idle[-1]
    process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(math, "72", "72")
        while process in quick._idle:
            time.sleep(0.01)
        try:
            assert threads.submit(math, "72", "72").result(timeout=30)
            assert not slow.done()
        finally:
            process.send_signal(signal.SIGCONT)
        assert slow.result()


@pytest.mark.parametrize("truth", ["72", r"\boxed{72}", r"\frac12", "x^2+1"])
def test_a_perfect_answer_earns_it(truth: str) -> None:
    assert all(grader(in_a_box(truth), truth) for grader in IN_A_BOX)
