"""The prefix tree holds the packed rows, each sampled token once, and a model sees each row as if
it were alone.
"""

import itertools
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from rollq.batch import Batch
from rollq.training import prefix_tree
from rollq.training.prefix_tree import PrefixTree
from tests.rollq.token_rows import batch_of, batches, episode

common = prefix_tree._common


def row_places(tree: "PrefixTree[Any]", row: int) -> Any:
    """The places that the row's last token attends to."""
    last = tree.last_tokens[row]
    places = np.arange(last + 1)
    return places[last < tree.subtree_ends[: last + 1]]


def with_siblings(batch: Batch) -> Batch:
    """The batch with each group's first prompt in all of its trajectories, so that there is
    something to share.
    """
    for group in batch.groups:
        first = group.trajectories[0].events[0]
        for trajectory in group.trajectories:
            trajectory.events[0] = first
    return batch


def check(batch: Batch) -> "PrefixTree[Any]":
    batch.version_steps = dict.fromkeys(batch.packed().version_names, 7)
    tree, packed = batch.prefix_tree(), batch.packed()
    assert (
        tree.version_steps.tolist()
        == packed.version_steps.tolist()
        == [7] * len(tree.version_names)
    )
    for row in range(len(packed.rewards)):
        places, own = row_places(tree, row), slice(packed.offsets[row], packed.offsets[row + 1])
        assert tree.tokens[places].tolist() == packed.tokens[own].tolist()
        assert tree.positions[places].tolist() == list(range(len(places)))
        assert tree.parents[places].tolist() == [-1, *places[:-1].tolist()]
        mine = tree.row_index[places] == row
        assert mine.tolist() == packed.mask[own].tolist()
        for name in ("logprobs", "versions"):
            assert (getattr(tree, name)[places][mine] == getattr(packed, name)[own][mine]).all()
    assert sorted(tree.tokens[tree.mask].tolist()) == sorted(packed.tokens[packed.mask].tolist())
    assert ((tree.row_index >= 0) == tree.mask).all()
    return tree


@given(batches)
def test_every_row_is_in_the_tree_and_every_sampled_token_once(batch: Batch) -> None:
    check(batch)
    check(with_siblings(batch))


def test_a_prompt_of_siblings_is_stored_once() -> None:
    numbers = itertools.count()
    siblings = [
        episode([(5, [([2], 1)])], numbers, sample, reward=float(sample)) for sample in range(3)
    ]
    batch = with_siblings(batch_of(siblings))
    assert len(check(batch).tokens) == 5 + 3 * (len(batch.packed().tokens) // 3 - 5)


def test_a_later_trace_shares_what_an_earlier_one_sampled_and_does_not_train_it_again() -> None:
    trajectory = episode([(2, [([2], 1)]), (9, [([1], 0)])], itertools.count(), 0, reward=1.0)
    _, later = [event for event in trajectory.events if hasattr(event, "messages")]
    earlier = trajectory.segments()[0]
    context = (earlier.prompt_ids + earlier.response_ids)[: len(later.ids) - 1]
    later.ids[: len(context)] = context
    tree = check(batch_of([trajectory]))
    assert len(tree.tokens) == sum(trajectory.traces) - len(context)
    assert int(tree.mask.sum()) == trajectory.sampled_tokens


def test_a_row_looks_only_at_the_prompts_that_begin_like_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """100 groups of 4 with a common opening, so each row follows two nodes, whatever the number of
    groups.
    """
    compared = []
    monkeypatch.setattr(prefix_tree, "_common", lambda *where: compared.append(1) or common(*where))
    numbers, groups = itertools.count(1000), []
    for _ in range(100):
        group = with_siblings(
            batch_of([episode([(5, [([2], 1)])], numbers, sample) for sample in range(4)])
        )
        group.trajectories[0].events[0].ids[:2] = array("I", [1, 3])
        groups.append(group.trajectories)
    tree = check(batch_of(*groups))
    assert (tree.parents == -1).sum() == 1
    assert len(compared) <= 2 * 4 * len(groups)


def test_an_empty_batch_is_an_empty_tree() -> None:
    assert batch_of().prefix_tree().tokens.shape == (0,)


@pytest.mark.trainers
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_a_model_gives_each_token_of_the_tree_what_it_gives_it_in_its_own_row() -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    numbers = itertools.count()
    siblings = [
        episode([(6, [([3], 2), ([2], 1)])], numbers, sample, reward=float(sample))
        for sample in range(3)
    ]
    batch = with_siblings(batch_of(siblings))
    tree, padded = batch.prefix_tree().torch(), batch.arrays().torch()
    vocabulary = int(padded.tokens.max()) + 1
    shape = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=vocabulary, num_key_value_heads=2, **shape)
    ).eval()
    at = torch.arange(len(tree.tokens))
    attends = (at[None, :] <= at[:, None]) & (at[:, None] < tree.subtree_ends[None, :])
    with torch.no_grad():
        logits = model(
            tree.tokens[None],
            attention_mask=torch.where(attends, 0.0, -1e9)[None, None],
            position_ids=tree.positions[None],
        ).logits[0]
        alone = model(padded.tokens, attention_mask=padded.attention_mask.long()).logits
    for row in range(3):
        places = torch.from_numpy(row_places(batch.prefix_tree(), row))
        assert torch.allclose(logits[places], alone[row, : len(places)], atol=1e-4)
