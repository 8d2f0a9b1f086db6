"""Hooks of mkdocs: pages and files that lie outside docs/ are part of the site, and links lead
there.

Markdown keeps links that work in the repository; what moves in the site is rewritten while it is
built.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

REPO = Path(__file__).resolve().parent.parent
PAGES = ("benchmarks/README.md", "CHANGELOG.md", "CONTRIBUTING.md")
LINKED = ("examples/*.py", "examples/*.toml", "examples/*.yaml")
"""Files that pages link to, as they are."""


def on_files(files: Files, config: Any) -> Files:
    for path in [
        *PAGES,
        *(str(path.relative_to(REPO)) for glob in LINKED for path in sorted(REPO.glob(glob))),
    ]:
        file = File.generated(
            config, path, abs_src_path=str(REPO / path), inclusion=InclusionLevel.INCLUDED
        )
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri
    source = here if here in PAGES else f"docs/{here}"

    def moved(link: re.Match[str]) -> str:
        target = normpath(join(dirname(source), link[1])).removeprefix("docs/")
        return f"]({relpath(target, dirname(here) or '.')}"

    return re.sub(r"\]\(([\w./-]+)(?=[)#])", moved, markdown)
