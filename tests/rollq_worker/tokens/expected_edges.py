"""The class of every edge, as tests expect it: `EXACT | rewritten(Edge.REPLY) |
unsupported(Edge.CALLS)`.
"""

from rollq_worker.tokens.selfcheck.bridge_comparison import Match
from rollq_worker.tokens.selfcheck.conversations import Edge

EXACT = dict.fromkeys(Edge, Match.EXACT)
CALL_EDGES = (Edge.CALL, Edge.SECOND_CALL, Edge.CALLS, Edge.WORDS_AND_CALL)
REPLY_EDGES = (Edge.REPLY, Edge.REPLY_AFTER_CALL, Edge.TRUNCATED)
RESULT_EDGES = (Edge.EMPTY_RESULT, Edge.MULTILINE_RESULT, Edge.MALFORMED)
ASKED_EDGES = (Edge.ASKED, Edge.ASKED_AFTER_CALL)
REASONED_EDGES = (Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL, Edge.REASONED_REPLY)
TOOL_EDGES = (*CALL_EDGES, *RESULT_EDGES, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL)
"""All that a tool answers."""


def same_text(*edges: Edge) -> dict[Edge, Match]:
    return dict.fromkeys(edges, Match.SAME_TEXT)


def rewritten(*edges: Edge) -> dict[Edge, Match]:
    return dict.fromkeys(edges, Match.REWRITE)


def unsupported(*edges: Edge) -> dict[Edge, Match]:
    return dict.fromkeys(edges, Match.UNSUPPORTED)
