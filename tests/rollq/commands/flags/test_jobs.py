"""The flags that say what is played, and the jobs that follow from them."""

import contextlib
import io
import sys
from pathlib import Path

import pytest

from rollq import cli
from rollq.commands.flags import jobs as job_flags
from rollq.commands.flags import play
from rollq.commands.flags import shared as flags
from rollq.errors import SettingsError
from rollq.ledger.ledger import Ledger
from rollq_worker.episode.strategies import AGENTS
from rollq_worker.tokens.tokenizer import BUNDLED, load_tokenizer
from rollq_worker.users import KINDS
from tests.rollq.commands.conftest import Fails
from tests.rollq.commands.lines import SUBMIT
from tests.rollq.samples import reader


def test_the_jobs_of_a_line() -> None:
    line = "submit --run r --env tau2:retail --split test --tasks 3-4 --size 2 --epochs 2 --top-p 0.9 --max-turns 7"
    args = cli.parser().parse_args([*line.split(), "--user", "openai:local:qwen", "--seed", "5", "--min-viable", "1"])
    jobs = list(job_flags.jobs(args))
    assert [job.group for job in jobs] == [
        "tau2-retail.test.3",
        "tau2-retail.test.4",
        "tau2-retail.test.3.e1",
        "tau2-retail.test.4.e1",
    ]
    assert jobs == list(job_flags.jobs(args))
    assert [job.task for job in jobs] == [3, 4, 3, 4]
    assert [job.seed for job in jobs] == [5, 5, 6, 6]
    assert {(job.size, job.viable, job.budget.max_turns, job.sample) for job in jobs} == {(2, 1, 7, 0)}
    assert jobs[0].sampling == {"temperature": 1.0, "top_p": 0.9}
    assert jobs[0].user == {"kind": "openai", "endpoint": "local", "model": "qwen"}


def test_queue_and_labels_are_part_of_the_jobs_and_of_their_source() -> None:
    plain = cli.parser().parse_args(list(SUBMIT))
    args = cli.parser().parse_args([*SUBMIT, "--queue", "qwen", "--label", "uid=a=b", "--label", '{"set": "x"}'])
    assert {job.queue for job in job_flags.jobs(args)} == {"qwen"}
    assert next(job_flags.jobs(args)).labels == {"uid": "a=b", "set": "x"}
    assert (next(job_flags.jobs(plain)).queue, next(job_flags.jobs(plain)).labels) == ("rollq", {})
    assert job_flags.source_name(args) != job_flags.source_name(plain)
    assert "queue qwen, labels uid=a=b,set=x" in job_flags.describe(args)


def test_arguments_of_the_template_are_part_of_the_jobs_and_of_their_source() -> None:
    plain = cli.parser().parse_args(list(SUBMIT))
    args = cli.parser().parse_args(
        [*SUBMIT, "--template-kwargs", "thinking=false", "--template-kwargs", '{"effort": "high", "thinking": true}']
    )
    assert next(job_flags.jobs(args)).template_kwargs == {"thinking": True, "effort": "high"}
    assert job_flags.source_name(args) != job_flags.source_name(plain)
    assert 'template_kwargs thinking=true,effort="high"' in job_flags.describe(args)
    assert "template_kwargs" not in job_flags.describe(plain)


@pytest.mark.parametrize(
    ("text", "meant"), [("a=False", "a=false"), ("a=high", 'a="high"'), ("a=None", "a=null"), ("a=", 'a=""')]
)
def test_a_value_that_is_not_json_is_written_so(fails: Fails, text: str, meant: str) -> None:
    assert f"did you mean {meant}" in fails(*SUBMIT, "--template-kwargs", text)


def test_an_argument_that_the_template_does_not_read_is_refused_where_it_is_known(
    redis_url: str, ledger: Ledger
) -> None:
    line = (*SUBMIT, "--redis", redis_url, "--template-kwargs", "enable_thinkin=false")
    said = _last_line(line, "--tokenizer", str(BUNDLED))
    assert "--template-kwargs: the chat template of" in said and "'enable_thinkin'" in said
    assert not reader(ledger).stats()["submitted"]
    assert cli.main(line) == 0  # without a tokenizer it is left to the workers


def test_the_producer_fixes_the_tokenizer(redis_url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    line = (*SUBMIT, "--redis", redis_url, "--tokenizer", str(BUNDLED))
    bundled = load_tokenizer()
    assert cli.main(line) == 0
    assert ledger.redis.hget(ledger.keys.meta, "tokenizer_hash") == bundled.hash.encode()
    assert ledger.redis.hget(ledger.keys.meta, "template_hash") == bundled.template_hash.encode()
    with pytest.raises(SettingsError, match="another tokenizer"):
        ledger.pin_tokenizer("other", bundled.template_hash)
    assert cli.main([*line[:-2], "--keep", "0.5"]) == 0
    assert ledger.redis.hget(ledger.keys.meta, "keep_s") == b"43200"
    assert "no-such" in _last_line(line, "--tokenizer=/no-such")
    monkeypatch.setitem(sys.modules, "rollq_worker.for_clients", None)
    assert "--tokenizer needs the worker's packages: pip install" in _last_line(line)


def test_the_template_of_the_line_is_fixed_with_the_tokenizer(redis_url: str, ledger: Ledger) -> None:
    line = (*SUBMIT, "--redis", redis_url, "--template", "qwen3")
    assert "--template needs --tokenizer" in _last_line(line)
    assert cli.main([*line, "--tokenizer", str(BUNDLED)]) == 0
    chosen = load_tokenizer(template="qwen3")
    assert ledger.redis.hget(ledger.keys.meta, "template_hash") == chosen.template_hash.encode()


def test_rows_that_no_worker_can_play_are_refused(tmp_path: Path, fails: Fails) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "x", "answer": "5"}\n{"prompt": "x"}\n{"answer": "5"}\n')
    said = fails("submit", "--run", "r", "--env", f"{rows}:number", "--tasks", "0-2", "--size", "1")
    assert "2 of 3 tasks of rows.number" in said and "the first is 1: the row has no answer" in said


def _last_line(line: tuple[str, ...], *more: str) -> str:
    """What a failing command says last."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert cli.main([*line, *more]) == 2
    return said.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("scripted", {"kind": "scripted"}),
        ("oracle", {"kind": "oracle"}),
        ("openai:here:org/m:1", {"kind": "openai", "endpoint": "here", "model": "org/m:1"}),
        ('{"kind": "oracle"}', {"kind": "oracle"}),
    ],
)
def test_users_by_name_and_as_json(text: str, spec: dict[str, str]) -> None:
    args = cli.parser().parse_args([*SUBMIT, "--user", text])
    assert args.user == spec
    job_flags.check_jobs(args)


def test_the_kinds_of_users_are_those_of_the_workers() -> None:
    assert set(play.USERS) == set(KINDS)


def test_the_agents_are_those_of_the_workers() -> None:
    assert set(flags.AGENTS) == set(AGENTS)


def test_the_agent_is_part_of_the_jobs_and_of_their_source() -> None:
    plain, react = (cli.parser().parse_args([*SUBMIT, *more]) for more in ((), ("--agent", "react")))
    job_flags.check_jobs(react)
    assert {(job.agent, *job.agent_args) for job in job_flags.jobs(react)} == {("react",)}
    assert job_flags.source_name(plain) != job_flags.source_name(react)
    assert "agent react" in job_flags.describe(react)


def test_examples_come_from_a_file_and_are_part_of_the_jobs(tmp_path: Path) -> None:
    file = tmp_path / "examples.jsonl"
    file.write_text('"user: hi"\n\n{"messages_display": "user: ho", "task": 1}\n')
    args = cli.parser().parse_args([*SUBMIT, "--agent", f"few-shot:{file}", "--single-tool"])
    job_flags.check_jobs(args)
    job = next(job_flags.jobs(args))
    assert (job.agent, job.agent_args) == ("few-shot", {"single_tool": True, "examples": ["user: hi", "user: ho"]})
    source = job_flags.source_name(args)
    file.write_text('"user: hi"\n')
    assert job_flags.source_name(cli.parser().parse_args([*SUBMIT, "--agent", f"few-shot:{file}"])) != source


@pytest.mark.parametrize("text", ["", "\n", "user: hi", "[1]", '{"messages": []}', '"a"\n""', "[" * 100_000])
def test_a_file_without_examples_is_refused(tmp_path: Path, fails: Fails, text: str) -> None:
    (tmp_path / "examples.jsonl").write_text(text)
    assert "--agent: " in fails(*SUBMIT, "--agent", f"few-shot:{tmp_path / 'examples.jsonl'}")


def test_a_light_client_leaves_a_users_options_to_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rollq_worker.for_clients", None)
    job_flags.check_jobs(cli.parser().parse_args([*SUBMIT, "--user", '{"kind": "oracle", "x": 1}']))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--env", "shp"), "there is no environment 'shp' on this machine; did you mean 'shop'?"),
        (("--split", "tset"), "shop has no split 'tset'; it has train, test, dev; did you mean 'test'?"),
        (("--split", "no-such"), "shop has no split 'no-such'; it has train, test, dev"),
        (("--tasks", "999999"), "shop/train has tasks 0 to 499, not 999999"),
    ],
)
def test_unknown_tasks_are_refused_unless_forced(
    redis_url: str, fails: Fails, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert f"rollq: {said} (if the workers know it: --force)" in fails(*SUBMIT, *flags, "--redis", redis_url)
    assert cli.main([*SUBMIT, *flags, "--force", "--redis", redis_url]) == 0
    assert f"rollq: warning: {said}\n" in capsys.readouterr().err


SEED_LIMIT = 2**53
INVALID_JOBS = [
    (
        ("--seed", str(SEED_LIMIT - 1), "--epochs", "2"),
        "seed must be a whole number of at least 0 and below 2**53, not",
    ),
    (("--seed", str(SEED_LIMIT - 1), "--refill", "1"), "seed"),
    (("--env", ""), "--env must be a name"),
    (("--split", ""), "--split must be a name"),
    (("--env", "x" * 93), "group"),
    (("--env", "x" * 92, "--epochs", "1000"), "group"),
    (("--env", "x" * 92, "--tasks", "0-99999"), "group"),
    (("--env", "x" * 92, "--refill", "1000"), "group"),
    (("--env", "-x"), "group"),
    (("--size", "2", "--min-viable", "3"), "--min-viable 3 is more than --size 2"),
    (("--user", '{"kind": "scripted", "x": NaN}'), "nan"),
    (("--user", '{"kind": "scripted", "x": 18446744073709551616}'), "64 bits"),
    (("--user", '{"kind": "scripted", "x": ' + "[" * 70 + "]" * 70 + "}"), "nested more than 64 deep"),
]


@pytest.mark.parametrize(("flags", "said"), INVALID_JOBS, ids=[" ".join(flags)[:40] for flags, _ in INVALID_JOBS])
def test_an_invalid_job_fails_the_line_before_anything_is_submitted(
    redis_url: str, ledger: Ledger, fails: Fails, flags: tuple[str, ...], said: str
) -> None:
    joined = [f"{flag}={value}" for flag, value in zip(flags[::2], flags[1::2], strict=True)]
    assert said in fails(*SUBMIT, "--redis", redis_url, *joined)
    assert reader(ledger).stats()["submitted"] == 0


def test_the_largest_seed_is_accepted(redis_url: str, ledger: Ledger) -> None:
    line = (*SUBMIT, "--seed", str(SEED_LIMIT - 2), "--epochs", "2", "--redis", redis_url)
    assert cli.main(line) == 0
    assert reader(ledger).job("r/shop.train.3.e1/0").job.seed == SEED_LIMIT - 1  # type: ignore[union-attr]
