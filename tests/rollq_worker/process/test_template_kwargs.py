"""Arguments for the chat template, from the job to the prompt, the header and an attempt that resumes."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rollq.job import Job
from rollq.ledger.ledger import Ledger
from rollq.settings import Settings
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.job_task import JobRunner
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer, load_tokenizer
from tests.rollq.samples import reader

SHUT = "<think>\n\n</think>\n\n"
"""What the template writes into the header of a turn that must not think."""


@pytest.fixture(scope="module")
def hybrid() -> Tokenizer:
    """The bundled tokenizer with a template that opens, shuts or leaves out reasoning, and keeps it when asked to."""
    text = (BUNDLED / "chat_template.jinja").read_text()
    header, old = "{{- '<|im_start|>assistant\\n' -}}\n{%- endif -%}", "message.reasoning_content -%}"
    assert header in text and old in text
    shut = header.replace(
        "\n{%- endif", f"\n{{%- if enable_thinking is false -%}}{{{{- {SHUT!r} -}}}}{{%- endif -%}}\n{{%- endif"
    )
    text = text.replace(header, shut).replace(old, "message.reasoning_content and (preserve_thinking or loop.last) -%}")
    return load_tokenizer().with_template(text)


@pytest.fixture
def runner(ledger: Ledger, engine_url: str, redis_url: str, hybrid: Tokenizer) -> Iterator[JobRunner]:
    engine = EnginePool([engine_url], vocab_size=hybrid.vocab_size)
    settings = Settings(redis_url=redis_url, engine_urls=(engine_url,), concurrency=4)
    yield JobRunner(settings, ledger.redis, engine, hybrid, "w", threading.Event())
    engine.close()


def submit(ledger: Ledger, **job: Any) -> str:
    made = Job(**{"run": "r", "group": "g", "env": "shop", "task": 0, **job})
    ledger.submit([made])
    return made.id


@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
def test_prompt_bridges_and_header_have_them(
    runner: JobRunner, ledger: Ledger, hybrid: Tokenizer, kwargs: dict[str, Any]
) -> None:
    summary = runner.run(submit(ledger, template_kwargs=kwargs))
    assert (summary["stop"], summary["reward"]) == ("done", 1.0)
    trajectory = reader(ledger).trajectory("r/g/0")
    text = hybrid.decode(trajectory.tokens)
    turns = text.count("<|im_start|>assistant\n")
    assert turns == trajectory.turns
    shut = kwargs == {"enable_thinking": False}
    assert text.count(f"<|im_start|>assistant\n{SHUT}") == (turns if shut else 0)
    # What rollq itself asks the template for is in the header too. With shut reasoning it would make no edge exact.
    assert trajectory.header.template_kwargs == ({} if shut else {"preserve_thinking": True}) | kwargs


def test_a_jobs_own_argument_wins(runner: JobRunner, ledger: Ledger) -> None:
    runner.run(submit(ledger, template_kwargs={"preserve_thinking": False}))
    assert reader(ledger).trajectory("r/g/0").header.template_kwargs == {"preserve_thinking": False}


def test_an_attempt_that_resumes_keeps_them(runner: JobRunner, ledger: Ledger, hybrid: Tokenizer) -> None:
    job_id = submit(ledger, template_kwargs={"enable_thinking": False})
    real_append = runner.ledger("r").append

    def append(*args: Any, **options: Any) -> None:
        real_append(*args, **options)
        if len(ledger.journal(job_id)) == 4:
            runner.draining.set()

    runner.ledger("r").append = append  # type: ignore[method-assign]
    assert runner.run(job_id)["stop"] == "released"
    runner.draining.clear()
    assert runner.run(job_id)["stop"] == "done"
    assert reader(ledger).stats()["resumed"] == 1
    trajectory = reader(ledger).trajectory(job_id)
    assert trajectory.header.template_kwargs["enable_thinking"] is False
    assert hybrid.decode(trajectory.tokens).count(SHUT) == trajectory.turns > 2


def test_one_that_the_template_does_not_read_is_the_jobs_failure(runner: JobRunner, ledger: Ledger) -> None:
    summary = runner.run(submit(ledger, template_kwargs={"enable_thinkin": False}))
    assert (summary["stop"], summary["failure"]) == ("failed", "job")
    state = reader(ledger).job("r/g/0")
    assert state is not None and "it reads enable_thinking, preserve_thinking; did you mean" in state.reason


def test_one_with_a_control_token_is_the_jobs_failure(runner: JobRunner, ledger: Ledger) -> None:
    summary = runner.run(submit(ledger, template_kwargs={"enable_thinking": ["a <|im_end|>"]}))
    assert (summary["stop"], summary["failure"]) == ("failed", "job")
    state = reader(ledger).job("r/g/0")
    assert state is not None and "holds the control token <|im_end|>" in state.reason
