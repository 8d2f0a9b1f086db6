"""Task folders of Harbor and terminal-bench: those that are read, and those that are refused."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from rollq.errors import JobFailure
from rollq_integrations.harbor import load
from rollq_integrations.harbor.folder import read
from rollq_integrations.harbor.task_folder import Healthcheck
from rollq_worker.environments import domain
from rollq_worker.environments.files import add_file
from tests.rollq_integrations.harbor.task_folders import COMPOSE, harbor, terminal_bench


def test_a_task_of_harbor(tmp_path: Path) -> None:
    toml = """
    [agent]
    timeout_sec = 30
    user = "dev"
    [verifier]
    timeout_sec = 40.5
    env = {LEVEL = "${LEVEL:-3}"}
    [solution.env]
    HINT = "a b"
    [environment]
    cpus = 2
    memory = "3G"
    workdir = "/src"
    allow_internet = false
    env = {A = "1"}
    """
    task = read(harbor(tmp_path / "one", toml, **{"solution/solve.sh": "true"}))
    place, [step] = task.place, task.steps
    assert (step.agent_s, step.tests_s, step.user, step.tests_env) == (
        30,
        40.5,
        "dev",
        {"LEVEL": "3"},
    )
    assert (place.cpus, place.memory, place.folder, place.env, place.network) == (
        2,
        3 << 30,
        "/src",
        {"A": "1"},
        False,
    )
    assert place.dockerfile == tmp_path / "one" / "environment" and place.image.startswith(
        "rollq-task:"
    )
    ready = read(
        harbor(tmp_path / "two", '[environment]\ndocker_image = "x:1"\nmemory_mb = 100\n')
    ).place
    assert (ready.dockerfile, ready.image, ready.memory, ready.network) == (
        None,
        "x:1",
        100 << 20,
        True,
    )


def test_a_task_of_terminal_bench(tmp_path: Path) -> None:
    task = read(
        terminal_bench(
            tmp_path, "instruction: Do it.\nmax_agent_timeout_sec: 90\nmax_test_timeout_sec: 60"
        )
    )
    [step] = task.steps
    assert (step.instruction, step.agent_s, step.tests_s, task.rewards) == ("Do it.", 90, 60, False)
    assert step.tests == (
        ("/tests", tmp_path / "tests"),
        ("/tests/run-tests.sh", tmp_path / "run-tests.sh"),
    )
    assert task.place.env == {"COLOUR": "red"} and step.solution == tmp_path / "solution.sh"


@pytest.mark.parametrize(
    "command",
    ["bash -c 'sleep infinity'", "[/bin/bash, -c, sleep 3600]", "tail -f /dev/null", "[bash]", ""],
)
def test_a_command_that_only_waits_changes_nothing(tmp_path: Path, command: str) -> None:
    read(terminal_bench(tmp_path, compose=f"services: {{client: {{command: {command}}}}}"))


@pytest.mark.parametrize(
    ("service", "says"),
    [
        ("{command: [sh, -c, nginx; sleep infinity]}", "asks for a command that does more"),
        ("{command: nginx}", "asks for a command that does more than wait"),
        ("{image: postgres}", "asks for an image without a build"),
    ],
)
def test_a_container_that_would_be_another_one_is_refused(
    tmp_path: Path, service: str, says: str
) -> None:
    with pytest.raises(JobFailure, match=says):
        read(terminal_bench(tmp_path, compose=f"services: {{client: {service}}}"))


@pytest.mark.parametrize(
    ("variables", "given"),
    [
        ("", {}),
        ("{A: true, B: 1, T_BENCH_X: }", {"A": "true", "B": "1"}),
        ("{A: yes, B: Off, C: FALSE}", {"A": "yes", "B": "Off", "C": "false"}),
        ("{A: 12:30:45, B: 1:30.5, C: 010}", {"A": "12:30:45", "B": "1:30.5", "C": "8"}),
        ("[A=, B=1=2]", {"A": "", "B": "1=2"}),
    ],
)
def test_variables_of_docker_compose(
    tmp_path: Path, variables: str, given: Mapping[str, str]
) -> None:
    compose = f"services: {{client: {{environment: {variables}}}}}"
    assert read(terminal_bench(tmp_path, compose=compose)).place.env == given


@pytest.mark.parametrize("volume", ["./tests:/tests:ro", "./tests/:/tests"])
def test_the_own_tests_may_be_a_volume(tmp_path: Path, volume: str) -> None:
    compose = f"services: {{client: {{volumes: ['{volume}']}}}}"
    assert "/tests" in dict(read(terminal_bench(tmp_path, compose=compose)).steps[0].tests)


@pytest.mark.parametrize("volume", ["./data:/data", "tests:/tests", "../tests:/tests", "/:/tests"])
def test_other_volumes_are_refused(tmp_path: Path, volume: str) -> None:
    with pytest.raises(JobFailure, match="asks for volumes"):
        compose = f"services: {{client: {{volumes: ['{volume}']}}}}"
        read(terminal_bench(tmp_path, compose=compose))


def test_keys_that_only_describe_a_task_change_nothing(tmp_path: Path) -> None:
    toml = """
    name = "one"
    title = "One"
    canary_guid = "0"
    category = "Software"
    subcategory = "Systems"
    tags = ["go"]
    languages = ["go"]
    difficulty = "core"
    expert_time_estimate_hours = 8
    [[steps]]
    name = "a"
    dependencies = []
    [[steps]]
    name = "b"
    dependencies = ["a"]
    inherit_prior_session = true
    """
    files = {f"steps/{name}/instruction.md": name for name in "ab"}
    assert [step.name for step in read(harbor(tmp_path, toml, **files)).steps] == ["a", "b"]


def test_root_is_a_user(tmp_path: Path) -> None:
    [step] = read(harbor(tmp_path, "[agent]\nuser = 0\n[verifier]\nuser = 0")).steps
    assert (step.user, step.tests_user) == ("0", "0")


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        (
            "artifacts = [{source = '/x', exclude = ['*.pyc']}]",
            "asks for artifacts with exceptions",
        ),
        ("[verifier.environment]\ngpus = 1", "asks for GPUs"),
        ("[environment]\nos = 'Windows'\ngpus = 1", "asks for Windows and GPUs"),
        (
            "[environment]\nenv = {KEY = '${SECRET}'}",
            "asks for the variable SECRET of this machine",
        ),
        ("[environment]\nmemory = 'much'", "the task one"),
        ("[agent]\ntimeout_sec = 'long'", "the task one: ValueError"),
        ("[agent]\ntimeout_sec = -1", "timeout_sec is -1, not"),
        ("[verifier]\ntimeout_sec = inf", "timeout_sec is inf, not"),
        ("[verifier]\nenvironment_mode = 'Separate'", "asks for the environment_mode 'Separate'"),
        ("artifacts = '/x'", "artifacts is not a list of paths"),
        ("artifacts = 7", "artifacts is not a list of paths"),
        ("[[steps]]\nname = ''\nmin_reward = {reward = 'high'}", "could not convert .*'high'"),
        ("artifacts = [1]", "artifacts is not a list of paths"),
        ("[environment]\ncpus = 0", "cpus is 0, not a number above 0"),
        ("[environment]\ncpus = nan", "cpus is nan, not"),
        ("[environment]\ncpus = inf", "cpus is inf, not"),
        ("[environment]\nmemory_mb = -5", "memory_mb is -5, not"),
        ("[environment]\nmemory_mb = inf", "memory_mb is inf, not"),
        ("[environment]\nmemory = '0G'", "memory is 0, not"),
        ("[environment]\nmemory_mb = 0.001", r"memory is 1048\.58 bytes, not from"),
        ("[environment]\nmemory_mb = 1e300", "memory is 1.04858e.306 bytes, not from"),
        ("[environment]\ndocker_image = 'x;id'", "docker_image cannot be 'x;id'"),
        ("[environment]\ndocker_image = '-v'", "docker_image cannot be '-v'"),
        ("[environment.env]\n'A=B' = 'c'", "no variable can be 'A=B'"),
        ('[verifier.env]\nA = "\\u0000"', "no variable can be 'A'"),
        ("[agent]\nuser = 'x; id'", "user cannot be 'x; id'"),
        ("[verifier]\nuser = '-R'", "user cannot be '-R'"),
        (f"[environment]\ncpus = 1{'0' * 400}", "the task one: OverflowError"),
        (
            "[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ncpus = 2",
            "asks for an environment of shared tests",
        ),
        ("[environment]\ncpus = 1e300", "cpus is 1e.300, not at most"),
        ("[agent]\ntimeout_sec = 0", "timeout_sec is 0, not"),
        ("[agent]\nnetwork_mode = 'no-network'", "asks for a network for its agent alone or its"),
        ("[verifier]\nnetwork_mode = 'no-network'", "asks for a network for its agent alone or"),
        ("[environment]\nallowed_hosts = ['h']", "asks for an allowlist of hosts"),
        ("[environment]\nnetwork_mode = 'allowlist'", "network_mode is 'allowlist', not public"),
        ("[verifier]\nnetwork_mode = ['public']", "network_mode is .'public'., not public"),
        ("[environment]\nallow_internet = 'false'", "allow_internet is 'false', not true"),
        ("[environment]\nworkdir = 7", "workdir is 7, not a path"),
        ("[environment]\nworkdir = 'app'", "workdir is 'app', not a path"),
        ("[environment]\nskills_dir = '/skills'", "asks for skills"),
        ("[environment.healthcheck]\nretries = 1", "the task one: KeyError: 'command'"),
        ("[environment.healthcheck]\ncommand = 'x'\nretries = 0", "a healthcheck needs retries"),
        ("[environment.healthcheck]\ncommand = 'x'\ninterval_sec = 0", "interval_s of a"),
        ("[environment.healthcheck]\ncommand = 'x'\nuser = 'y'", "asks for the key 'user'"),
        ("[[environment.mcp_servers]]\nname = 'a'", "the task one: KeyError: 'url'"),
        (
            "[[environment.mcp_servers]]\nname = 'a'\nurl = 'u'\nheaders = {A = 'b'}",
            "asks for the key 'headers'",
        ),
        ("multi_step_reward_strategy = 'best'", "multi_step_reward_strategy is 'best'"),
        ("[[steps]]\nname = 'a'\nsecret = 1", "asks for the key 'secret'"),
        ("[[steps]]\nname = 'a'\n[[steps]]\nname = 'a'", "need a name each"),
        ("[[steps]]\nname = '../one'", "not that of a folder in steps"),
        (
            "[[steps]]\nname = 'a'\nverifier = {environment_mode = 'separate'}",
            "asks for the key 'environment_mode'",
        ),
        (
            "[[steps]]\nname = 'a'\nagent = {network_mode = 'public'}",
            "asks for the key 'network_mode'",
        ),
        ("[[verifier.collect]]\ncommand = 'true'", "asks for commands that collect artifacts"),
        ("[verifier]\nreward_range = [0, 1]", "asks for the key 'reward_range'"),
        ("[[services]]\nname = 'db'", "asks for the key 'services'"),
        ("environment = 3", "the task one: "),
        ("[", "the task one: TOMLDecodeError"),
    ],
)
def test_what_is_not_played(tmp_path: Path, toml: str, says: str) -> None:
    with pytest.raises(JobFailure, match=says):
        read(harbor(tmp_path / "one", toml))


@pytest.mark.parametrize(
    ("toml", "agent", "tests"),
    [
        ("[environment]\nnetwork_mode = 'no-network'", False, None),
        ("[environment]\nnetwork_mode = 'public'\nallow_internet = false", True, None),
        (
            "[agent]\nnetwork_mode = 'no-network'\n[verifier]\nenvironment_mode = 'separate'",
            False,
            True,
        ),
        ("[verifier]\nenvironment_mode = 'separate'\nnetwork_mode = 'no-network'", True, False),
        ("[verifier.environment]\nallow_internet = false", True, False),
    ],
)
def test_networks_of_phases(tmp_path: Path, toml: str, agent: bool, tests: bool | None) -> None:
    task = read(harbor(tmp_path, toml))
    assert task.place.network is agent
    assert (task.tests_place and task.tests_place.network) is tests


@pytest.mark.parametrize(
    ("own", "dockerfile", "image", "cpus"),
    [
        ("", True, "rollq-task:", 2),
        ("", False, "agents:1", 2),
        ("[verifier.environment]\ncpus = 3", True, "rollq-task:", 3),
        ("[verifier.environment]\ncpus = 3", False, "agents:1", 3),
        ("[verifier.environment]\ndocker_image = 'own:1'", True, "own:1", 1),
    ],
)
def test_the_container_of_separate_tests(
    tmp_path: Path, own: str, dockerfile: bool, image: str, cpus: int
) -> None:
    toml = "[environment]\ncpus = 2\ndocker_image = 'agents:1'\nworkdir = '/src'"
    mode = "[verifier]\nenvironment_mode = 'separate'"
    files = {"tests/Dockerfile": "FROM y"} if dockerfile else {}
    task = read(harbor(tmp_path / "one", f"{toml}\n{mode}\n{own}", **files))
    place = task.tests_place
    assert place and place.image.startswith(image) and place.cpus == cpus
    assert place.folder == (None if own else "/src")
    assert (task.steps[0].tests == ()) is dockerfile


@pytest.mark.parametrize("file", ["Dockerfile", "docker-compose.yaml"])
def test_a_steps_own_image_for_tests_is_not_played(tmp_path: Path, file: str) -> None:
    files = {"steps/a/instruction.md": "x", f"steps/a/tests/{file}": "FROM x"}
    toml = "[verifier]\nenvironment_mode = 'separate'\n[[steps]]\nname = 'a'"
    with pytest.raises(JobFailure, match="asks for a step's own image for tests"):
        read(harbor(tmp_path / "one", toml, **files))
    read(harbor(tmp_path / "one", "[[steps]]\nname = 'a'", **files))


def test_lines_that_mark_an_instruction_are_left_out(tmp_path: Path) -> None:
    marks = "\ufeff<!-- harbor-canary GUID 1 -->\n# Canary of the tests\n\n"
    assert read(harbor(tmp_path / "one", **{"instruction.md": f"{marks}# Do it\n"})).steps[
        0
    ].instruction == ("# Do it\n")
    with pytest.raises(JobFailure, match="has an empty instruction"):
        read(harbor(tmp_path / "two", **{"instruction.md": marks}))


def test_a_folder_elsewhere_is_no_part_of_a_task(tmp_path: Path) -> None:
    task = harbor(tmp_path / "one")
    (task / "environment").rename(tmp_path / "elsewhere")
    (task / "environment").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JobFailure, match="its folder environment elsewhere"):
        read(task)
    steps = {"steps/a/instruction.md": "x", "steps/a/tests/test.sh": "true"}
    task = harbor(tmp_path / "two", "[[steps]]\nname = 'a'", **steps)
    (task / "steps/a/workdir").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JobFailure, match="its folder workdir elsewhere"):
        read(task)


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("descriptions: [{key: base, description: Do it.}]", "asks for several descriptions"),
        ("instruction: Do it.\nparser_name: swebench", "asks for the parser 'swebench'"),
        ("instruction: Do it.\nrun_tests_in_same_shell: true", "tests in the agent's shell"),
    ],
)
def test_what_is_not_played_of_terminal_bench(tmp_path: Path, yaml: str, says: str) -> None:
    with pytest.raises(JobFailure, match=says):
        read(terminal_bench(tmp_path, yaml))


def test_folders_that_lack_something(tmp_path: Path) -> None:
    for missing, says in (
        ("tests/test.sh", "no tests/test.sh"),
        ("environment/Dockerfile", "neither"),
        ("instruction.md", "Error"),
    ):
        task = harbor(tmp_path / missing.replace("/", "-"))
        (task / missing).unlink()
        with pytest.raises(JobFailure, match=says):
            read(task)
    secret = terminal_bench(
        tmp_path / "three", compose=COMPOSE.replace("COLOUR=red", "KEY=${SECRET}")
    )
    with pytest.raises(JobFailure, match="asks for the variable SECRET"):
        read(secret)
    for n, (wrong, says) in enumerate(
        (
            ("services: [a]", "services is a list, not a table"),
            ("services: {client: }", "client is a NoneType, not a table"),
            ("services: {client: {environment: red}}", "the task compose-2: AttributeError"),
            ("a: " + "[" * 3000, "RecursionError"),
            (
                "services: {client: {environment: [KEY]}}",
                "asks for the variable KEY of this machine",
            ),
            (
                "services: {client: {environment: {KEY: }}}",
                "asks for the variable KEY of this machine",
            ),
        )
    ):
        with pytest.raises(JobFailure, match=says):
            read(terminal_bench(tmp_path / f"compose-{n}", compose=wrong))
    (tmp_path / "four").mkdir()
    for folder, says in (("four", "has no task"), ("five", "No such file")):
        with pytest.raises(JobFailure, match=says):
            load(str(tmp_path / folder))
    with pytest.raises(JobFailure, match="which tasks"):
        load(None)


def test_a_task_where_you_are_has_the_name_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(harbor(tmp_path / "one") / "tests")
    assert load("..").task("train", 0).id == "one"


def test_a_folder_is_named_by_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLQ_ENV_FILES", "")
    task = harbor(tmp_path / "tasks" / "one")
    name = add_file(f"harbor:{tmp_path / 'tasks'}")
    assert name.startswith("tasks.harbor@") and domain(name).splits() == {"train": 1}
    assert domain(name).task("train", 0).id == "one"
    (task / "instruction.md").write_text("Do that.")
    assert add_file(f"harbor:{tmp_path / 'tasks'}") != name
    with pytest.raises(JobFailure, match="there is no task 1 of split 'train'"):
        domain(name).task("train", 1)


def test_an_image_is_named_by_what_may_be_run_and_where_links_lead(tmp_path: Path) -> None:
    task = harbor(tmp_path / "one", **{"environment/start.sh": "true"})
    start, link = task / "environment" / "start.sh", task / "environment" / "link"
    names = [read(task).place.image]
    start.chmod(0o755)
    names.append(read(task).place.image)
    for leads_to in ("start.sh", "Dockerfile", "/nowhere"):
        link.unlink(missing_ok=True)
        link.symlink_to(leads_to)
        names.append(read(task).place.image)
    assert len(set(names)) == len(names)
    start.chmod(0o700)
    assert read(task).place.image == names[-1]


STEPS = """
multi_step_reward_strategy = "final"
artifacts = ["/all"]
[agent]
timeout_sec = 50
user = "dev"
[verifier]
timeout_sec = 60
env = {A = "1", B = "2"}
[[environment.mcp_servers]]
name = "notes"
transport = "streamable-http"
url = "http://notes:8000/mcp"
[[environment.mcp_servers]]
name = "files"
transport = "stdio"
command = "python3"
args = ["/srv.py", "-v"]
[environment.healthcheck]
command = "true"
retries = 5
[[steps]]
name = "first"
min_reward = 0.5
[steps.healthcheck]
command = "ls"
start_period_sec = 2
[[steps]]
name = "second"
min_reward = {style = 1}
artifacts = ["/own"]
[steps.agent]
timeout_sec = 70
[steps.verifier]
env = {B = "3"}
"""


def test_steps(tmp_path: Path) -> None:
    files = {
        "steps/first/instruction.md": "Begin.",
        "steps/first/tests/test.sh": "true",
        "steps/first/solution/solve.sh": "true",
        "steps/second/instruction.md": "Go on.\n",
        "steps/second/workdir/setup.sh": "true",
    }
    one = harbor(tmp_path / "one", STEPS, **files)
    (one / "instruction.md").unlink()
    task = read(one)
    first, second = task.steps
    servers = (
        "\n\nMCP Servers:\nThe following MCP servers are available for this task.\n"
        "- notes: streamable-http transport, url: http://notes:8000/mcp\n"
        "- files: stdio transport, command: python3 /srv.py -v\n"
    )
    assert (first.instruction, second.instruction) == (f"Begin.{servers}", f"Go on.\n{servers}")
    assert task.final and task.healthcheck == Healthcheck(command="true", retries=5)
    assert first.healthcheck == Healthcheck(command="ls", start_period_s=2.0)
    assert (first.agent_s, second.agent_s, second.user, second.tests_s) == (50, 70, "dev", 60)
    assert (first.tests_env, second.tests_env) == ({"A": "1", "B": "2"}, {"A": "1", "B": "3"})
    assert first.tests == [("/tests", one / "tests"), ("/tests", one / "steps/first/tests")]
    assert second.tests == [("/tests", one / "tests")]
    assert (first.smallest_rewards, second.smallest_rewards) == ({"reward": 0.5}, {"style": 1})
    assert second.artifacts == ("/logs/artifacts", "/all", "/own")
    assert (first.files, second.files) == (None, one / "steps/second/workdir")
    assert first.solution == one / "steps/first/solution" and second.solution is None
    assert load(str(one)).task("train", 0).moves == ()
