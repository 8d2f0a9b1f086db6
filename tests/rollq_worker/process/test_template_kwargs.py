"""Arguments for the chat template, from the job to the prompt, the header and an attempt that
resumes.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from rollq.ledger.ledger import Ledger
from rollq_worker.process.job_task import JobRunner
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer, load_tokenizer
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import drain_at, running, submit

SHUT = "<think>\n\n</think>\n\n"
"""What the template writes into the header of a turn that must not think."""


@pytest.fixture(scope="module")
def hybrid() -> Tokenizer:
    """The bundled tokenizer with a template that opens, shuts or leaves out reasoning, and keeps it
    when asked to.
    """
    text = (BUNDLED / "chat_template.jinja").read_text()
    header, old = (
        "{{- '<|im_start|>assistant\\n' -}}\n{%- endif -%}",
        "message.reasoning_content -%}",
    )
    assert header in text and old in text
    shut = header.replace(
        "\n{%- endif",
        f"\n{{%- if enable_thinking is false -%}}{{{{- {SHUT!r} -}}}}{{%- endif -%}}\n{{%- endif",
    )
    text = text.replace(header, shut).replace(
        old, "message.reasoning_content and (preserve_thinking or loop.last) -%}"
    )
    return load_tokenizer().with_template(text)


@pytest.fixture
def runner(ledger: Ledger, engine_url: str, hybrid: Tokenizer) -> Iterator[JobRunner]:
    with running(ledger, engine_url, hybrid) as found:
        yield found


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
    # What rollq itself asks the template for is in the header too. With shut reasoning it would
    # make no edge exact.
    assert (
        trajectory.header.template_kwargs == ({} if shut else {"preserve_thinking": True}) | kwargs
    )


def test_a_jobs_own_argument_wins(runner: JobRunner, ledger: Ledger) -> None:
    runner.run(submit(ledger, template_kwargs={"preserve_thinking": False}))
    assert reader(ledger).trajectory("r/g/0").header.template_kwargs == {"preserve_thinking": False}


def test_an_attempt_that_resumes_keeps_them(
    runner: JobRunner, ledger: Ledger, hybrid: Tokenizer
) -> None:
    job_id = submit(ledger, template_kwargs={"enable_thinking": False})
    drain_at(runner, ledger, job_id, 4)
    assert runner.run(job_id)["stop"] == "released"
    runner.draining.clear()
    assert runner.run(job_id)["stop"] == "done"
    assert reader(ledger).stats()["resumed"] == 1
    trajectory = reader(ledger).trajectory(job_id)
    assert trajectory.header.template_kwargs["enable_thinking"] is False
    assert hybrid.decode(trajectory.tokens).count(SHUT) == trajectory.turns > 2


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"enable_thinkin": False}, "it reads enable_thinking, preserve_thinking; did you mean"),
        ({"enable_thinking": ["a <|im_end|>"]}, "holds the control token <|im_end|>"),
    ],
)
def test_one_that_cannot_be_used_is_the_jobs_failure(
    runner: JobRunner, ledger: Ledger, kwargs: dict[str, Any], says: str
) -> None:
    summary = runner.run(submit(ledger, template_kwargs=kwargs))
    assert (summary["stop"], summary["failure"]) == ("failed", "job")
    state = reader(ledger).job("r/g/0")
    assert state is not None and says in state.reason
