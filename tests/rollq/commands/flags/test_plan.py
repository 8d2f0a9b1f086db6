"""The jobs that follow from a line, and what is checked before they are submitted."""

import sys
from pathlib import Path

import pytest

from rollq import Client, cli
from rollq.commands.flags import keys, plan
from rollq.commands.submit import SubmitKeys
from rollq.errors import SettingsError
from rollq.ledger.ledger import Ledger
from rollq_worker.tokens.tokenizer import BUNDLED, load_tokenizer
from tests.rollq.commands.conftest import Fails, Says
from tests.rollq.commands.lines import SUBMIT
from tests.rollq.samples import reader


def planned(*line: str) -> plan.Plan:
    values = keys.Values(SubmitKeys).read(cli.parser().parse_args(line))
    own = values.settings(SubmitKeys)
    return plan.Plan(job=values.job(task=own.tasks[0]), keys=own, epochs=own.epochs)


def test_the_jobs_of_a_line() -> None:
    line = (
        "submit --run r --env tau2:retail --split test --tasks 3-4 --size 2 --set epochs=2 --set "
        "seed=5"
    )
    found = planned(*line.split(), "--set", "user=openai:local:qwen")
    jobs = list(found.jobs())
    names = [
        "tau2-retail.test.3",
        "tau2-retail.test.4",
        "tau2-retail.test.3.e1",
        "tau2-retail.test.4.e1",
    ]
    assert [job.group for job in jobs] == names
    assert jobs == list(found.jobs())
    assert ([job.task for job in jobs], [job.seed for job in jobs]) == ([3, 4, 3, 4], [5, 5, 6, 6])
    assert {(job.size, job.sample, job.user["model"]) for job in jobs} == {(2, 0, "qwen")}


def test_everything_that_is_played_is_part_of_the_source() -> None:
    sources = {
        planned(*SUBMIT, *more).source
        for more in (
            (),
            ("--set", "queue=qwen"),
            ("--set", "labels.uid=7"),
            ("--set", "template_kwargs.thinking=false"),
            ("--set", "agent=react"),
            ("--set", "budget.max_turns=7"),
            ("--set", "epochs=2"),
            ("--tasks", "0-4"),
            ("--size", "2"),
        )
    }
    assert len(sources) == 9
    assert planned(*SUBMIT, "--set", "ahead=7").source in sources


def test_what_is_played_is_said_defaults_included() -> None:
    said = planned(
        *SUBMIT,
        "--set",
        "labels.uid=a",
        "--set",
        "sampling.top_p=0.5",
        "--set",
        "env_args.hard=true",
    )
    assert said.describe() == (
        "run r: env shop, split train, tasks 0-3, epochs 1, env_args.hard true, agent "
        "tool-calling, user.kind scripted, history keep, sampling.temperature 1.0, sampling.top_p "
        "0.5, budget.max_turns 30, budget.max_tokens 32768, budget.max_new_tokens 1024, "
        "budget.deadline_s 1800.0, purpose train, size 1, labels.uid a"
    )


def test_an_argument_that_the_template_does_not_read_is_refused_where_it_is_known(
    ledger: Ledger, says: Says
) -> None:
    line = (*SUBMIT, "--set", "template_kwargs.enable_thinkin=false")
    said = says(*line, "--set", f"tokenizer={BUNDLED}", code=2).err
    assert "template_kwargs: the chat template of" in said and "'enable_thinkin'" in said
    assert not reader(ledger).stats()["submitted"]
    says(*line)  # without a tokenizer it is left to the workers


def test_the_producer_pins_the_tokenizer(
    ledger: Ledger, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = (*SUBMIT, "--set", f"tokenizer={BUNDLED}")
    bundled = load_tokenizer()
    says(*line)
    assert ledger.redis.hget(ledger.keys.meta, "tokenizer_hash") == bundled.hash.encode()
    assert ledger.redis.hget(ledger.keys.meta, "template_hash") == bundled.template_hash.encode()
    with pytest.raises(SettingsError, match="another tokenizer"):
        ledger.pin_tokenizer("other", bundled.template_hash)
    says(*SUBMIT, "--set", "forget_after=0.5")
    assert ledger.redis.hget(ledger.keys.meta, "forget_after_s") == b"43200"
    assert "no-such" in says(*line, "--set=tokenizer=/no-such", code=2).err
    monkeypatch.setitem(sys.modules, "rollq_worker.commands.for_clients", None)
    assert "tokenizer needs the worker's packages: pip install" in says(*line, code=2).err


def test_the_template_is_pinned_with_the_tokenizer(ledger: Ledger, says: Says) -> None:
    line = (*SUBMIT, "--set", "template=qwen3")
    assert "template needs tokenizer" in says(*line, code=2).err
    says(*line, "--set", f"tokenizer={BUNDLED}")
    chosen = load_tokenizer(template="qwen3")
    assert ledger.redis.hget(ledger.keys.meta, "template_hash") == chosen.template_hash.encode()


def test_rows_that_no_worker_can_play_are_refused(tmp_path: Path, fails: Fails) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "x", "answer": "5"}\n{"prompt": "x"}\n{"answer": "5"}\n')
    said = fails("submit", "--run", "r", "--env", f"{rows}:number", "--tasks", "0-2", "--size", "1")
    assert "2 of 3 tasks of rows.number" in said and "the first is 1: the row has no answer" in said


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "agent=telepathy",
            "agent: agent 'telepathy' is unknown here; there are act, few-shot, react",
        ),
        ("agent_args.call=all", "agent: agent_args of tool-calling"),
        (
            'context={"kind": "window", "over": 9}',
            "context: context 'window': turns must be a whole number",
        ),
        (
            'context={"kind": "summary", "over": 9, "endpoint": "sim"}',
            "context: summary model needs model",
        ),
        ('user={"kind": "oracle", "x": 1}', "user: user kind 'oracle' takes no x"),
        ('user={"kind": "openai", "model": "q"}', "user: user model needs endpoint"),
        ('user={"kind": "foo"}', "user: "),
    ],
)
def test_what_no_worker_plays_is_refused(fails: Fails, setting: str, said: str) -> None:
    assert said in fails(*SUBMIT, "--set", setting)


def test_a_light_client_leaves_a_users_options_to_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "rollq_worker.commands.for_clients", None)
    planned(*SUBMIT, "--set", 'user={"kind": "oracle", "x": 1}').check()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--env", "shp"), "there is no environment 'shp' on this machine; did you mean shop?"),
        (
            ("--split", "tset"),
            "shop has no split 'tset'; it has train, test, dev; did you mean test?",
        ),
        (("--split", "no-such"), "shop has no split 'no-such'; it has train, test, dev"),
        (("--tasks", "999999"), "shop/train has tasks 0 to 499, not 999999"),
    ],
)
def test_unknown_tasks_are_refused_unless_forced(
    says: Says, flags: tuple[str, ...], said: str
) -> None:
    refused = says(*SUBMIT, *flags, code=2).err
    assert f"rollq: {said} (if the workers know it: --set force=true)" in refused
    forced = says(*SUBMIT, *flags, "--set", "force=true").err
    assert f"rollq: run r: {said}; the workers may know it\n" in forced


SEED_LIMIT = 2**53
INVALID_JOBS = [
    (
        f"--set seed={SEED_LIMIT - 1} --set epochs=2",
        "seed must be a whole number of at least 0 and below 2**53, not",
    ),
    (f"--set seed={SEED_LIMIT - 1} --set refill=1", "seed"),
    ("--env=", "env must be a name"),
    ("--split=", "split must be a name"),
    ("--env " + "x" * 93, "group"),
    ("--env " + "x" * 92 + " --set epochs=1000", "group"),
    ("--env " + "x" * 92 + " --tasks 0-99999", "group"),
    ("--env " + "x" * 92 + " --set refill=1000", "group"),
    ("--env=-x", "group"),
    ("--size 2 --set min_viable=3", "min_viable 3 is more than the group's size 2"),
    ("--set env_args.x=NaN", "nan"),
    ("--set env_args.x=18446744073709551616", "64 bits"),
    ("--set env_args.x=" + "[" * 70 + "]" * 70, "nested more than 64 deep"),
]


@pytest.mark.parametrize(
    ("flags", "said"), INVALID_JOBS, ids=[flags[:40] for flags, _ in INVALID_JOBS]
)
def test_an_invalid_job_fails_the_line_before_anything_is_submitted(
    redis_url: str, ledger: Ledger, fails: Fails, flags: str, said: str
) -> None:
    assert said in fails(*SUBMIT, "--redis", redis_url, *flags.split())
    assert reader(ledger).stats()["submitted"] == 0


def test_the_largest_seed_is_accepted(client: Client, says: Says) -> None:
    says(*SUBMIT, "--set", f"seed={SEED_LIMIT - 2}", "--set", "epochs=2")
    job = client.job("r/shop.train.3.e1/0").job
    assert job is not None and job.seed == SEED_LIMIT - 1
