"""Run files: they say what flags say, flags go first, and whatever is wrong is one line with file and key."""

from pathlib import Path

import pytest

from rollq import cli
from rollq.commands.flags import jobs as job_flags
from rollq.errors import FailureClass
from rollq.job import Purpose
from rollq.ledger.ledger import Ledger
from tests.conftest import REPO
from tests.rollq.commands.conftest import Fails
from tests.rollq.samples import reader

EXAMPLE = REPO / "examples" / "shop.toml"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.toml"


def test_every_flag_has_its_key(file: Path) -> None:
    """The file and the line say the same."""
    flags = """--run r --env shop --split test --tasks 2-5 --size 3 --epochs 2 --max-turns 9 --max-new-tokens 64
        --max-tokens 2000 --deadline 60 --temperature 0.5 --top-p 1 --agent react --history template
        --calls all --single-tool
        --seed 11 --user openai:local:q --purpose eval --min-viable 2 --ahead 7 --budget engine=9,user=1
        --template-kwargs enable_thinking=false --template-kwargs effort="high"
        --routed-experts 48x8x128
        --queue q --label uid=7 --label set=a --keep 2 --durability fsync --refill 1 --seal --json"""
    file.write_text(
        """
        run = "r"
        env = "shop"
        split = "test"
        tasks = "2-5"
        size = 3
        epochs = 2
        max_turns = 9
        max_new_tokens = 64
        max_tokens = 2000
        deadline = 60
        temperature = 0.5
        top_p = 1
        agent = "react"
        calls = "all"
        single_tool = true
        routed_experts = {layers = 48, top_k = 8, experts = 128}
        history = "template"
        seed = 11
        user = { kind = "openai", endpoint = "local", model = "q" }
        purpose = "eval"
        min_viable = 2
        ahead = 7
        queue = "q"
        keep = 2
        durability = "fsync"
        refill = 1
        seal = true
        json = true
        [budget]
        engine = 9
        user = 1
        [template_kwargs]
        enable_thinking = false
        effort = "high"
        [label]
        uid = "7"
        set = "a"
        """
    )
    by_flags = vars(cli.parser().parse_args(["submit", *flags.split()]))
    by_file = vars(cli.parser().parse_args(["submit", "--config", "run.toml"]))
    assert {**by_file, "config": None} == by_flags
    assert by_file["purpose"] is Purpose.EVAL
    assert by_file["budget"] == {FailureClass.ENGINE: 9, FailureClass.USER: 1}


@pytest.mark.parametrize("place", ["before", "after"])
def test_flags_override_the_file_wherever_they_stand(file: Path, place: str) -> None:
    file.write_text('run = "r"\nenv = "shop"\ntasks = 7\nsize = 4\nseal = true\nsingle_tool = true\n')
    config, flags = ["--config=run.toml"], ["--size", "1", "--tasks", "0-1", "--no-seal", "--seed", "3"]
    args = cli.parser().parse_args(["submit", *(flags + config if place == "before" else config + flags)])
    assert (args.size, args.tasks, args.seal, args.seed) == (1, range(2), False, 3)
    assert (args.run_name, args.env, args.single_tool, args.max_turns) == ("r", "shop", True, 30)


WRONG = [
    ("max_turn = 3", "'max_turn' is not a flag; did you mean max_turns?"),
    ("max-turns = 3", "'max-turns' is not a flag; did you mean max_turns?"),
    ("run_name = 'x'", "'run_name' is not a flag"),
    ("frobnicate = 3", "'frobnicate' is not a flag; the flags are run, env, "),
    ("config = 'other.toml'", "'config' is not a flag"),
    ("[play]\nmax_turns = 3", "'play' is not a flag"),
    ("max_turns = '3'", "max_turns: expected a number, not the string '3'"),
    ("max_turns = 3.5", "max_turns: expected a whole number of at least 1, not '3.5'"),
    ("max_turns = true", "max_turns: expected a number or a string, not a bool"),
    ("max_turns = [3]", "max_turns: expected a number or a string, not a list"),
    ("[max_turns]\nn = 3", "max_turns: expected a number or a string, not a table"),
    ("tasks = 2026-01-01", "tasks: expected a number or a string, not a date"),
    ("template_kwargs = true", "template_kwargs: expected a table or a string, not a bool"),
    ("max_turns = 0", "max_turns: expected a whole number of at least 1, not '0'"),
    ("env = 3", "env: expected a string, not 3"),
    ("run = 3", "run: expected a string, not 3"),
    ("run = 'a b'", "run: expected a name"),
    ("calls = 'some'", "calls: expected first or all or refuse, not 'some'"),
    ("single_tool = 1", "single_tool: expected true or false, not 1"),
    ("user = { kind = 'gpt' }", 'user: expected an object with a "kind"'),
    ("user = { kind = 'scripted', since = 2026-01-01 }", "user: Object of type date is not JSON serializable"),
    ("user = { kind = 'oracle', patience = 3 }", "user in run.toml): user kind 'oracle' takes no patience"),
    ("split = ''", "split in run.toml) must be a name"),
    ("[budget]\nmax_turns = 3", "budget: expected CLASS=N"),
    ("redis = 'redis://h'", "redis: belongs to a machine, not to a run: set ROLLQ_REDIS_URL"),
    ("tokenizer = '/models/q'", "tokenizer: belongs to a machine, not to a run: set ROLLQ_TOKENIZER"),
    ("seed = ", "run.toml is not TOML: "),
    ("seed = 1\nseed = 2", "run.toml is not TOML: "),
    ("seed = " + "[" * 5000, "run.toml is not TOML: "),
    ("seed = " + "9" * 5000, "run.toml is not TOML: "),
    ("seed = 0x" + "f" * 5000, "seed: Exceeds the limit"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[text[:30] for text, _ in WRONG])
def test_a_wrong_file_is_one_clear_line(fails: Fails, file: Path, text: str, said: str) -> None:
    file.write_text(text)
    found = fails("submit", "--config", "run.toml", "--run", "r", "--env", "shop", "--tasks", "0")
    assert said in found
    assert "run.toml" in found


def test_a_missing_file_or_another_kind_of_file(fails: Fails, file: Path) -> None:
    assert "run.toml cannot be read: No such file" in fails("eval", "--config", "run.toml")
    assert "cannot be read: Is a directory" in fails("eval", "--config", str(file.parent))
    file.write_bytes(b"run = '\xff'")
    assert "run.toml is not TOML: " in fails("eval", "--config", "run.toml")
    assert "--config: expected one argument" in fails("eval", "--config")
    assert "--config: expected one argument" in fails("eval", "--config", "--run", "r")


def test_a_file_has_only_flags_of_its_command(fails: Fails, file: Path) -> None:
    for flag in ("epochs", "spare"):
        file.write_text(f"{flag} = 2")
        assert f"'{flag}' is not a flag" in fails("eval", "--config", "run.toml")
    assert "there is no flag --config" in fails("stats", "--config", "run.toml")


def test_required_flags_can_be_in_the_file(fails: Fails, file: Path) -> None:
    file.write_text('env = "shop"')
    assert "required: --run, --tasks" in fails("submit", "--config", "run.toml")


@pytest.mark.parametrize("command", ["submit", "eval"])
def test_the_example_fits_both_commands(command: str) -> None:
    args = cli.parser().parse_args([command, "--config", str(EXAMPLE), "--run", "r"])
    job_flags.check_jobs(args)
    job = next(job_flags.jobs(args))
    assert (job.env, job.size, job.seed, job.budget.max_turns, job.agent_args) == ("shop", 4, 7, 20, {"calls": "all"})


def test_what_is_played_is_printed_first(redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["submit", "--config", str(EXAMPLE), "--run", "r", "--tasks", "2", "--redis", redis_url, "--json"]
    assert cli.main(line) == 0
    said = [text for text in capsys.readouterr().err.splitlines() if "warning" not in text]
    assert said[0] == (
        "run r: env shop, split train, tasks 2, size 4, epochs 1, max_turns 20, max_new_tokens 512, max_tokens 32768,"
        " deadline 1800, temperature 1, agent tool-calling, calls all, history keep, seed 7, user scripted,"
        " purpose train"
    )
    assert reader(ledger).stats()["submitted"] == 4
