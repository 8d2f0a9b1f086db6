"""Reads tool calls and reasoning out of a sampled turn; one module of `formats/` per format.

No text is lost: everything that is neither a readable call nor reasoning stays in the content,
broken calls and their tags included. Readers never raise and never repair a call. They do not know
which tools exist; schemas only give types to values that a format writes without quotes. Installed
packages add readers: see docs/formats.md.
"""

from collections.abc import Iterable, Mapping
from functools import cache

from rollq_worker.extensions.plug_ins import plug_ins, with_plug_ins
from rollq_worker.toolcalls.formats import (
    functionary,
    gemma4,
    glm45,
    gpt_oss,
    json_lists,
    llama3,
    markup,
    messages,
    mistral,
    nested_markup,
    pythonic,
    sections,
)
from rollq_worker.toolcalls.pieces import Reader, block_reader

NO_CALLS = "no_calls"
"""The reader of turns that are text and reasoning."""
GROUP = "rollq.readers"
"""The entry points of readers: a name, and a `Reader`."""
PARSERS: Mapping[str, Reader] = {
    **json_lists.READERS,
    **markup.READERS,
    **llama3.READERS,
    **mistral.READERS,
    **glm45.READERS,
    **sections.READERS,
    **gpt_oss.READERS,
    **gemma4.READERS,
    **pythonic.READERS,
    **functionary.READERS,
    **nested_markup.READERS,
    **messages.READERS,
}
"""The readers that come with rollq, by the names in the records of model families. The first one
that fits a template wins.
"""


@cache
def readers() -> Mapping[str, Reader]:
    """All readers by name, also those of installed packages, which are loaded at the first call.

    Raises JobFailure for a plug-in that is broken or whose name is taken.
    """
    own = {**PARSERS, NO_CALLS: block_reader({})}
    return with_plug_ins(own, ((added.name, added) for added in plug_ins(GROUP, Reader)))


def readers_for(tokens: Iterable[str]) -> Mapping[str, Reader]:
    """All readers for a vocabulary with these added tokens, also those whose tags it marks.

    Raises JobFailure as `readers` does.
    """
    return {**readers(), **glm45.hunyuan4(tokens)}
