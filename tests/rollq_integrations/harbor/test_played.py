"""Task folders played in real containers. Run `make test-containers`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollq.env import Action
from rollq.errors import EnvironmentFailure
from rollq_integrations.harbor import load
from rollq_worker.commands.env.check import check_environment
from tests import container_engine
from tests.container_engine import IMAGE
from tests.rollq_integrations.harbor.test_tasks import COMPOSE, EXAMPLE

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600), container_engine.UNCLOSED]
OWN = 'artifacts = ["/app/median.py", "/app/none"]\n[verifier]\nenvironment_mode = "separate"\n'


@pytest.fixture(scope="module", autouse=True)
def served() -> Iterator[None]:
    with container_engine.served():
        yield


@pytest.fixture
def task(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE / "fix-the-median", tmp_path / "median")
    return tmp_path / "median"


def in_a_container_of_its_own(task: Path) -> None:
    (task / "task.toml").write_text(OWN)
    (task / "tests" / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY . /tests/\n")


def in_a_copy(task: Path) -> None:
    (task / "task.toml").write_text(OWN)


def of_terminal_bench(task: Path) -> None:
    """The reward is the exit code of the tests."""
    checks = (
        "mkdir -p /logs/verifier && python3 /tests/checks.py && grep -q ': 1.0' "
        "/logs/verifier/reward.json\n"
    )
    for name, text in {
        "task.yaml": "instruction: Repair it.",
        "docker-compose.yaml": COMPOSE,
        "run-tests.sh": checks,
    }.items():
        (task / name).write_text(text)
    shutil.copytree(task / "environment", task, dirs_exist_ok=True)
    shutil.copy(task / "solution" / "solve.sh", task / "solution.sh")
    (task / "task.toml").unlink()


@pytest.mark.parametrize(
    "form", [lambda task: None, in_a_container_of_its_own, in_a_copy, of_terminal_bench]
)
def test_the_solution_earns_the_reward_and_idleness_none(task: Path, form) -> None:
    form(task)
    domain = load(str(task))
    report = check_environment(domain, "train", [0])
    assert report.rewards == [1.0] and report.problems == []
    episode = domain.open("train", 0, {})
    try:
        assert (
            episode.step(Action("bash", {"command": "python3 -c 'import median' && pwd"})).text
            == "/app\n"
        )
        episode.step(Action("respond", {"content": "Done."}))
        assert episode.grade().reward == 0.0
    finally:
        episode.close()


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "environment/Dockerfile",
            f"FROM {IMAGE}\nRUN echo the reason; exit 3\n",
            r"(?s)the image .*the reason",
        ),
        ("tests/test.sh", "sleep 600", "were stopped: it ran longer than 3 s"),
        (
            "tests/test.sh",
            "echo the reason; exit 1",
            r"(?s)ended with code 1 and no reward.*the reason",
        ),
        (
            "tests/test.sh",
            "head -c 99 /dev/zero > /dev/full || exit 9",
            "ended with code 9 and no reward",
        ),
        ("tests/test.sh", "mkdir /logs/verifier/reward.txt", "reward.txt is no file"),
        ("tests/test.sh", "kill -9 -1; sleep 1", "and no reward"),
        (
            "tests/test.sh",
            "set -e; yes | head -c 40000000; echo 1 > /logs/verifier/reward.txt",
            "the 16 MB for outputs are full",
        ),
    ],
)
def test_what_cannot_be_graded_is_a_failure(task: Path, file: str, text: str, says: str) -> None:
    (task / "task.toml").write_text("[verifier]\ntimeout_sec = 3\n")
    (task / file).write_text(text if "Dockerfile" in file else f"#!/bin/bash\n{text}\n")
    episode = None
    with pytest.raises(EnvironmentFailure, match=says):
        episode = load(str(task)).open("train", 0, {})
        episode.grade()
    if episode is not None:
        episode.close()


SPOILS = {
    "it is a loop": "echo 'while True: pass' > median.py",
    "it floods": "echo 'while True: print(0)' > median.py",
    "there are no programs": "rm -rf /usr/bin /bin",
    "there is no shell": "rm -f /bin/sh",
    "there is no room for a process": "bomb() { while :; do bomb & done; }; bomb",
    "the disk of outputs is full": "head -c 99999999 /dev/zero > /run/rollq/full",
}


@pytest.mark.parametrize("form", [lambda task: None, of_terminal_bench])
@pytest.mark.parametrize("spoils", SPOILS.values(), ids=list(SPOILS))
def test_what_the_policy_has_spoiled_earns_nothing(task: Path, form, spoils: str) -> None:
    (task / "tests" / "test.sh").write_text("#!/bin/bash\nset -e\nid\npython3 /tests/checks.py\n")
    form(task)
    if (task / "task.toml").exists():
        (task / "task.toml").write_text("[verifier]\ntimeout_sec = 6\n")
    else:
        (task / "task.yaml").write_text("instruction: Repair it.\nmax_test_timeout_sec: 6\n")
    episode = load(str(task)).open("train", 0, {})
    try:
        episode.step(Action("bash", {"command": spoils, "seconds": 5}))
        assert episode.grade().reward == 0.0
    finally:
        episode.close()


def test_a_good_solution_earns_its_reward_beside_too_many_processes(task: Path) -> None:
    domain = load(str(task))
    episode = domain.open("train", 0, {})
    try:
        for action in domain.task("train", 0).moves[:1]:
            episode.step(action)
        bomb = SPOILS["there is no room for a process"]
        episode.step(Action("bash", {"command": bomb, "seconds": 3}))
        assert episode.grade().reward == 1.0
    finally:
        episode.close()


@pytest.mark.parametrize("toml", ['[agent]\nuser = "nobody"\n', ""])
def test_the_solution_of_a_user_earns_the_reward(task: Path, toml: str) -> None:
    (task / "task.toml").write_text(toml)
    with (task / "environment" / "Dockerfile").open("a") as dockerfile:
        dockerfile.write("RUN chmod -R a+w /app\n" + ("" if toml else "USER nobody\n"))
    report = check_environment(load(str(task)), "train", [0])
    assert report.rewards == [1.0] and report.problems == []


def test_what_another_user_left_cannot_grade(task: Path) -> None:
    (task / "task.toml").write_text('[agent]\nuser = "nobody"\n')
    (task / "tests" / "test.sh").write_text(
        "#!/bin/sh\nsleep 1\n[ -e /tests/json.py ] || echo 0 > /logs/verifier/reward.txt\n"
    )
    (task / "tests" / "test.sh").chmod(0o644)
    episode = load(str(task)).open("train", 0, {})
    try:
        episode.sandbox.run(["sh", "-c", "mkdir /tests; echo > /tests/json.py"], user="root")
        names = "seq -f /run/rollq/%g 3000 | xargs touch; chmod a+w /run/rollq/*"
        forge = "for f in /run/rollq/*; do echo 65534 > $f; done"
        earn = "echo '{\"reward\": 1}' > /logs/verifier/reward.json"
        cheat = f"{names}; while :; do {forge}; {earn}; done >&- 2>&- &"
        assert episode.step(Action("bash", {"command": cheat})).text == ""
        grade = episode.grade()
        assert (grade.reward, grade.info["tests"]) == (0.0, "")
    finally:
        episode.close()
