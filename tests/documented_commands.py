"""The commands that the documents show: what a reader would type, page by page.

A command stands in a block of `sh`, or in an indented block whose lines all begin with a program. A
synopsis, which has square brackets or a choice in parentheses, names flags and is no command.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PAGES = [
    REPO / "README.md",
    REPO / "CONTRIBUTING.md",
    *sorted(REPO.glob("docs/*.md")),
    REPO / "benchmarks/README.md",
]
FENCED = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)((?:    .*\n)+)")
PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:rollq|make|pip|python|git|pytest|docker|\.venv/bin/\w+) "
)


@dataclass(frozen=True)
class Command:
    """One command of a page, on one line and without its comment."""

    page: str
    line: str

    @property
    def words(self) -> list[str]:
        """Of the command itself, without the variables that are set before it."""
        words = shlex.split(self.line)
        return words[next(i for i, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)) :]

    @property
    def is_synopsis(self) -> bool:
        return bool(re.search(r"(^|\s)[\[(]|\s\|\s", re.sub(r"'[^']*'|\"[^\"]*\"", "", self.line)))


def write_files(folder: Path) -> None:
    """Writes the files that pages have their reader write, but for those of `rollq env new`."""
    (folder / "examples").symlink_to(REPO / "examples")
    (folder / "solver.py").symlink_to(REPO / "examples/agents/openai_agent.py")
    page = (REPO / "docs/environments.md").read_text()
    [row] = re.findall(r"```json\n(\{\"question.*?)```", page, re.DOTALL)
    rows = [row.replace('"question": "', f'"question": "{number}: ') for number in range(100)]
    (folder / "maths.jsonl").write_text("".join(rows))
    [code] = re.findall(r"```python\n((?:(?!```).)*maths\.jsonl.*?)```", page, re.DOTALL)
    (folder / "maths.py").write_text(code)


def commands() -> Iterator[Command]:
    for page in PAGES:
        text = page.read_text()
        blocks = [
            *FENCED.findall(text),
            *(b for b in INDENTED.findall(ANY_FENCE.sub("", text)) if _typed(b)),
        ]
        for block in blocks:
            yield from (Command(str(page.relative_to(REPO)), line) for line in lines(block))


def _typed(block: str) -> bool:
    return all(PROGRAM.match(line) for line in lines(block))


def lines(block: str) -> Iterator[str]:
    """The commands of a block: joined where they go on in the next line, without comments."""
    for joined in re.sub(r" *(\\\n|\n {12,})\s*", " ", block).splitlines():
        if line := re.sub(r"(^|\s+)#.*", "", joined).strip():
            yield line
