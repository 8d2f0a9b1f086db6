"""`rollq doctor` on a tokenizer: the table, the verdict, the next step, and the exit code, for
people and programs.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq_worker.tokens.selfcheck.conversations import Edge
from rollq_worker.tokens.tokenizer import BUNDLED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED, tmp_path / "model"))


def report(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(["doctor", "--json", *args])
    return code, json.loads(capsys.readouterr().out)


def test_a_good_tokenizer(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["doctor", "--tokenizer", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{folder}: family chatml-hermes, calls in the hermes format" in lines[0]
    assert [line.split("  ")[3].strip() for line in lines[1 : 1 + len(Edge)]] == [
        edge.value for edge in Edge
    ]
    assert lines[1 + len(Edge)].strip().startswith(f"{len(Edge)} edges: {len(Edge)} exact, 0 ")
    assert lines[2 + len(Edge)].strip() == "the template reads no arguments"
    assert lines[-2].startswith("verdict: ") and lines[-1].startswith("next: ")
    code, found = report(capsys, "--tokenizer", str(folder))
    assert code == 0 and found["verdict"] == "good"
    tokenizer = found["checks"]["tokenizer"]
    assert tokenizer["edges"] == {edge.value: {"class": "exact", "why": ""} for edge in Edge}
    assert (
        tokenizer["stop_tokens"] == ["<|im_end|>", "<|endoftext|>"]
        and tokenizer["parser"] == "hermes"
    )


def test_rewriting_is_no_failure_and_is_explained(folder: Path, capsys: pytest.CaptureFixture[str]):
    template = (folder / "chat_template.jinja").read_text()
    counted = template.replace(
        "<tool_response>\\n' +", "<tool_response>' ~ ('\\n' if loop.last else '\\n\\n') +"
    )
    assert counted != template
    (folder / "chat_template.jinja").write_text(counted)
    assert cli.main(["doctor", "--tokenizer", str(folder)]) == 0
    out = capsys.readouterr().out
    assert (
        "second call -> tool                   rewrite" in out
        and "rewrite: history stays as it was sampled" in out
    )


def test_what_the_template_is_asked_is_told(folder: Path, capsys: pytest.CaptureFixture[str]):
    template = (folder / "chat_template.jinja").read_text()
    old = "if message.reasoning_content"
    assert old in template
    (folder / "chat_template.jinja").write_text(
        template.replace(old, f"{old} and (preserve_thinking or loop.last)")
    )
    _, found = report(capsys, "--tokenizer", str(folder))
    tokenizer = found["checks"]["tokenizer"]
    assert tokenizer["template_kwargs"] == {"preserve_thinking": True}
    assert {edge["class"] for edge in tokenizer["edges"].values()} == {"exact"}
    assert cli.main(["doctor", "--tokenizer", str(folder)]) == 0
    assert "rollq adds preserve_thinking=true, which keeps old reasoning" in capsys.readouterr().out


@pytest.fixture
def hybrid(folder: Path) -> Path:
    """A template that shuts reasoning at the header when it is asked to."""
    file = folder / "chat_template.jinja"
    old = "'<|im_start|>assistant\\n' -}}\n{%- endif -%}"
    assert file.read_text().count(old) == 1
    shut = (
        "{%- if enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif "
        "-%}\n{%- endif -%}"
    )
    file.write_text(file.read_text().replace(old, old.replace("{%- endif -%}", shut)))
    return folder


def test_arguments_of_the_template(hybrid: Path, capsys: pytest.CaptureFixture[str]):
    line = ("--tokenizer", str(hybrid))
    _, plain = report(capsys, *line)
    code, short = report(capsys, *line, "--template-kwargs", "enable_thinking=false")
    assert code == 0
    plain, short = plain["checks"]["tokenizer"], short["checks"]["tokenizer"]
    assert plain["arguments"] == short["arguments"] == ["enable_thinking"]
    assert (plain["template_kwargs"], short["template_kwargs"]) == ({}, {"enable_thinking": False})
    classes = [[edge["class"] for edge in check["edges"].values()] for check in (plain, short)]
    assert (
        set(classes[0]) == {"exact"} and "rewrite" in classes[1]
    )  # the template forgets the empty reasoning
    assert cli.main(["doctor", *line, "--template-kwargs", "enable_thinking=false"]) == 0
    said = capsys.readouterr().out
    assert "arguments of the template (--template-kwargs): enable_thinking" in said


def test_a_misspelt_argument(hybrid: Path, capsys: pytest.CaptureFixture[str]):
    code, found = report(
        capsys, "--tokenizer", str(hybrid), "--template-kwargs", "enable_thinkin=false"
    )
    tokenizer = found["checks"]["tokenizer"]
    assert code == 1 and found["next"] == "correct --template-kwargs"
    assert "did you mean enable_thinking?" in tokenizer["says"] and tokenizer["arguments"] == [
        "enable_thinking"
    ]


def test_an_argument_that_the_template_cannot_take(
    hybrid: Path, capsys: pytest.CaptureFixture[str]
):
    file = hybrid / "chat_template.jinja"
    file.write_text(
        file.read_text() + "{{- ('' + enable_thinking) if enable_thinking is defined -}}"
    )
    line = ("--tokenizer", str(hybrid))
    assert report(capsys, *line)[0] == 0
    code, found = report(capsys, *line, "--template-kwargs", "enable_thinking=3")
    assert code == 1 and found["next"] == "correct --template-kwargs"
    assert "cannot render" in found["checks"]["tokenizer"]["says"]


def test_a_template_that_breaks_an_edge(folder: Path, capsys: pytest.CaptureFixture[str]):
    template = (folder / "chat_template.jinja").read_text()
    old = "<tool_response>\\n' + message.content"
    broken = template.replace(old, old.replace("+", "~ loop.index ~"))
    assert broken != template
    (folder / "chat_template.jinja").write_text(broken)
    code, found = report(capsys, "--tokenizer", str(folder))
    assert code == 1 and found["verdict"] == "bad"
    assert found["next"].startswith("the edge 'call -> tool' is unsupported")
    assert cli.main(["doctor", "--tokenizer", str(folder)]) == 1
    assert "verdict: not ready: tokenizer" in capsys.readouterr().out


def test_a_template_without_tools(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    code, found = report(capsys, "--tokenizer", str(folder))
    tokenizer = found["checks"]["tokenizer"]
    assert (
        code == 1
        and "leaves an assistant's tool calls out" in tokenizer["says"] == tokenizer["reason"]
    )
    assert tokenizer["arguments"] == [] and found["next"].startswith(
        "no training template fits it: "
    )


def test_a_directory_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, found = report(capsys, "--tokenizer", str(tmp_path / "nowhere"))
    assert code == 1 and "no such directory" in found["checks"]["tokenizer"]["says"]
    assert found["next"].startswith("give --tokenizer")


@pytest.mark.parametrize(("template", "says"), [("qwen3.5", True), (None, False)])
def test_a_template_that_loses_a_second_system_message_is_named(
    template: str | None, says: bool, folder: Path, capsys: pytest.CaptureFixture[str]
):
    flags = ["--template", template] if template else []
    assert cli.main(["doctor", "--tokenizer", str(folder), *flags]) == 0
    said = "the template takes one system message: several at the beginning are joined"
    assert (said in capsys.readouterr().out) == says
