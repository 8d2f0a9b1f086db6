"""The registry: builtins, entry points of installed packages, one load a process, errors that say
what to do.
"""

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from rollq.env import Action, Domain
from rollq.errors import JobFailure, SettingsError
from rollq_worker import environments
from rollq_worker.commands.env.check import check_environment
from rollq_worker.environments import files
from rollq_worker.fakes import FakeUser
from tests.packages import install
from tests.rollq_worker.environments.episodes import play, respond

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_domains", {})
    monkeypatch.setattr(environments, "_locks", {})
    monkeypatch.setenv(files.FILES.variable, "")


Package = Callable[[str, str, str], None]
"""Installs a module of that name with this source, as the environments NAME = MODULE:FUNCTION of
these lines.
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def of(name: str, source: str, points: str) -> None:
        named = dict(line.split(" = ") for line in points.splitlines())
        install(tmp_path, name, {"rollq.environments": named}, **{name: source})

    yield of
    for name in set(sys.modules) - before:
        del sys.modules[name]


DOMAIN = """
calls = []
class Domain:
    name, version = "d", "1"
    def splits(self): return {"train": 1}
    def task(self, split, index): ...
    def open(self, split, index, args): ...
def load(variant):
    calls.append(variant)
    return Domain()
"""


def test_names_are_all_there_is(package: Package) -> None:
    tau2 = ["tau2:airline", "tau2:retail", "tau2:telecom", "tau2_2025:airline", "tau2_2025:retail"]
    builtin = ["harbor", "shop", *tau2, "tau_bench:airline", "tau_bench:retail", "verifiers"]
    assert environments.names() == builtin
    package("mine", DOMAIN, "another = mine:load")
    assert environments.names() == ["another", *builtin]


@pytest.mark.parametrize(
    "name", ["shops", "", ":", "shop:", "tau2", "tau2:", "tau2:banking", "Shop", "shop:retail:x"]
)
def test_an_unknown_name_lists_what_there_is(name: str) -> None:
    with pytest.raises(JobFailure, match=r"shop") as caught:
        environments.domain(name)
    if not name.startswith("shop:retail"):
        assert (
            "there are harbor, shop, tau2:airline, tau2:retail, tau2:telecom, "
            "tau2_2025:airline, tau2_2025:retail, " in str(caught.value)
        )
        assert repr(name) in str(caught.value)


def assert_ground_truth_earns_the_reward(domain: Domain) -> None:
    size = domain.splits()["train"]
    assert len({domain.task("train", index).opening for index in range(size)}) == size == 100
    for index in range(size):
        task = domain.task("train", index)
        grade, texts = play(domain, "train", index, task.moves)
        assert (grade.reward, texts[1:]) == (1.0, [task.replies[0]])


def test_the_example_is_found_and_played(package: Package) -> None:
    package("guess_number", (EXAMPLES / "guess_number.py").read_text(), "guess = guess_number:load")
    domain = environments.domain("guess")
    assert_ground_truth_earns_the_reward(domain)
    assert play(domain, "train", 0, domain.task("train", 0).moves)[1][0] == "right"


def test_the_environment_in_the_documents_is_played(package: Package) -> None:
    text = (EXAMPLES.parent / "docs" / "environments.md").read_text()
    [code] = [
        block
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "def load(" in block
    ]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 40
    package("doubles", code, "doubles = doubles:load")
    domain = environments.domain("doubles")
    assert_ground_truth_earns_the_reward(domain)
    environment = domain.open("train", 1, {})
    for mistake in (Action("double", {}), Action("double", {"n": "1"}), Action("halve", {"n": 1})):
        assert environment.step(mistake).text.startswith("Error: ")
    for said, reward in (("It is 12.", 0.0), ("It is 2. \n", 1.0)):
        assert play(domain, "train", 1, [respond(said)])[0].reward == reward


def test_the_dataset_in_the_documents_is_played(tmp_path: Path) -> None:
    text = (EXAMPLES.parent / "docs" / "environments.md").read_text().partition("## Datasets")[2]
    rows, code = (
        text.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("json", "python")
    )
    (tmp_path / "maths.jsonl").write_text(rows + '{"question": "And 6 x 7?", "answer": 42}\n')
    (tmp_path / "maths.py").write_text(code)
    domain = environments.domain(files.add_file(str(tmp_path / "maths.py")))
    task, episode = domain.task("train", 0), domain.open("train", 0, {})
    assert "clips" in episode.reset(FakeUser([task.opening])) and "Think" in episode.system_prompt
    episode.step(respond("72, because ..."))
    assert episode.grade().reward == 0.1
    assert play(domain, "train", 1, [respond("It is 42.")])[0].reward == 1.0


def test_the_tools_in_the_documents_are_played(tmp_path: Path) -> None:
    text = (
        (EXAMPLES.parent / "docs" / "environments.md")
        .read_text()
        .partition("## Tools of an MCP server")[2]
    )
    rows = text.partition("```json\n")[2].partition("```")[0]
    sums, server = (part.partition("```")[0] for part in text.split("```python\n")[1:3])
    for name, written in (("sums.jsonl", rows), ("sums.py", sums), ("server.py", server)):
        (tmp_path / name).write_text(written)
    domain = environments.domain(files.add_file(str(tmp_path / "sums.py")))
    assert check_environment(domain, "train", [0]).problems == []


def test_the_example_takes_no_nonsense(package: Package) -> None:
    package("guess_number", (EXAMPLES / "guess_number.py").read_text(), "guess = guess_number:load")
    domain = environments.domain("guess")
    for split, index, args in (
        ("test", 0, {}),
        ("train", 100, {}),
        ("train", -1, {}),
        ("train", 0, {"seed": 1}),
    ):
        with pytest.raises(JobFailure):
            domain.open(split, index, args)
    environment = domain.open("train", 0, {})
    environment.reset(FakeUser(["Hi", "Bye ###STOP###"]))
    for name, arguments in (
        ("guess", {}),
        ("guess", {"number": "5"}),
        ("guess", {"number": True}),
        ("add", {}),
    ):
        assert environment.step(Action(name, arguments)).text.startswith("Error: ")
    assert [environment.step(Action("guess", {"number": n})).text for n in (0, 2, 1)] == [
        "higher",
        "lower",
        "right",
    ]
    environment.step(respond("1 or 2 or 3"))
    assert environment.grade().reward == 0.0


def test_the_part_behind_the_colon_reaches_the_package(package: Package) -> None:
    package("mine", DOMAIN, "another = mine:load\nwhole:name = mine:load")
    for name in ("another", "another:hard", "another:a:b", "whole:name"):
        environments.domain(name)
    import mine

    assert mine.calls == [None, "hard", "a:b", "name"]


def test_64_threads_find_and_load_it_once(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    package("slow", "import time\ntime.sleep(0.2)\n" + DOMAIN, "slow = slow:load")
    start = Barrier(64)
    find, found_names = environments._find, []
    monkeypatch.setattr(
        environments, "_find", lambda name: (found_names.append(name), find(name))[1]
    )

    def ask(_: int) -> object:
        start.wait()
        return environments.domain("slow")

    with ThreadPoolExecutor(64) as pool:
        assert len({id(found) for found in pool.map(ask, range(64))}) == 1
    import slow

    assert slow.calls == [None]
    assert found_names == ["slow"]


def test_a_slow_package_holds_up_nobody_else(package: Package) -> None:
    source = """
from threading import Event
go, entered = Event(), Event()
def wait(variant):
    entered.set()
    go.wait(30)
    return load(variant)
"""
    package("stuck", DOMAIN + source, "stuck = stuck:wait")
    import stuck

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(environments.domain, "stuck")
        assert stuck.entered.wait(30)
        assert environments.domain("shop").name == "shop"
        assert not pending.done()
        stuck.go.set()
        assert pending.result(30).name == "d"


def test_what_a_package_does_wrong_is_said_by_name_and_not_remembered(package: Package) -> None:
    package("broken", "import nowhere_to_be_found\n", "broken = broken:load")
    package("odd", "def load(variant): return 3\n", "odd = odd:load")
    package("lost", "", "lost = lost:load")
    flaky = """
first = True
def flaky(variant):
    global first
    if first:
        first = False
        1 / 0
    return load(variant)
"""
    package("flaky", DOMAIN + flaky, "flaky = flaky:flaky")
    for name, words in (
        (
            "broken",
            r"'broken' \(broken:load\): ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        ("odd", "odd:load returned no Domain: a int lacks name, version, splits, task, open"),
        ("lost", "'lost' .*AttributeError"),
        ("flaky", "'flaky' .*ZeroDivisionError"),
    ):
        with pytest.raises(JobFailure, match=words):
            environments.domain(name)
    assert environments.domain("flaky").name == "d"


def test_an_adapter_says_itself_what_is_missing(package: Package) -> None:
    source = (
        "from rollq.errors import SettingsError\ndef load(v): raise "
        "SettingsError('pip install it')\n"
    )
    package("needy", source, "needy = needy:load")
    with pytest.raises(SettingsError, match="pip install it"):
        environments.domain("needy")


def test_two_packages_cannot_claim_one_name(package: Package) -> None:
    package("usurper", DOMAIN, "shop = usurper:load")
    with pytest.raises(
        JobFailure, match=r"claimed by rollq_worker\.environments\.shop:load and usurper:load"
    ):
        environments.domain("shop")


def test_the_same_entry_point_twice_is_one(package: Package) -> None:
    """As with an editable install beside a stale one."""
    package("twin", DOMAIN, "twin = twin:load")
    package("twin_again", "", "twin = twin:load")
    assert environments.domain("twin").name == "d"
