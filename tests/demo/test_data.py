import numpy as np
import pytest
import torch

from overlap.demo.data import load_corpus, rank_slice
from overlap.errors import ConfigError

CONTEXT = 16


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(256)) * 40)
    return load_corpus(path, context=CONTEXT)


def test_default_is_the_standard_library_without_its_tests():
    corpus = load_corpus(None, context=128)
    assert len(corpus.train) > 2**20
    assert b"import unittest\n\nclass Test" not in corpus.train.tobytes()[: 2**20]


def test_heldout_is_the_tail_and_never_trained_on(corpus):
    assert len(corpus.train) + len(corpus.heldout) == 256 * 40
    assert len(corpus.heldout) == int(256 * 40 * 0.05)
    assert corpus.heldout[-1] == 255


def test_the_global_batch_depends_on_seed_and_step_only(corpus):
    first = corpus.batch(seed=1, step=7, size=12, context=CONTEXT)
    assert torch.equal(first, corpus.batch(seed=1, step=7, size=12, context=CONTEXT))
    assert not torch.equal(first, corpus.batch(seed=1, step=8, size=12, context=CONTEXT))
    assert not torch.equal(first, corpus.batch(seed=2, step=7, size=12, context=CONTEXT))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_take_equal_slices_that_make_up_the_batch(corpus, ranks):
    batch = corpus.batch(seed=0, step=0, size=12, context=CONTEXT)
    slices = [rank_slice(batch, rank, ranks) for rank in range(ranks)]
    assert {len(inputs) for inputs, _ in slices} == {12 // ranks}
    assert torch.equal(torch.cat([inputs for inputs, _ in slices]), batch[:, :-1])
    assert torch.equal(torch.cat([targets for _, targets in slices]), batch[:, 1:])


def test_targets_are_the_next_bytes(corpus):
    inputs, targets = rank_slice(corpus.batch(seed=0, step=0, size=4, context=CONTEXT), 0, 1)
    assert torch.equal((inputs + 1) % 256, targets)


def test_heldout_windows_reach_both_ends(corpus):
    rows = corpus.heldout_windows(5, CONTEXT)
    assert rows.shape == (5, CONTEXT + 1)
    assert rows[0, 0] == corpus.heldout[0]
    assert rows[-1, -1] == corpus.heldout[-1]


def test_a_folder_is_read_recursively_sorted_without_binary_or_hidden_files(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "second.txt").write_bytes(b"2" * 400)
    (tmp_path / "a.txt").write_bytes(b"1" * 400)
    (tmp_path / "binary").write_bytes(b"\0" * 400)
    (tmp_path / ".hidden").write_bytes(b"3" * 400)
    corpus = load_corpus(tmp_path, context=CONTEXT)
    text = np.concatenate([corpus.train, corpus.heldout]).tobytes()
    assert text == b"1" * 400 + b"2" * 400


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data must be readable, but got .*nowhere \(No such file"):
        load_corpus(tmp_path / "nowhere", context=CONTEXT)


@pytest.mark.parametrize("size", [0, 100])
def test_too_little_text_is_refused(tmp_path, size):
    path = tmp_path / "short"
    path.write_bytes(b"x" * size)
    with pytest.raises(ConfigError, match=f"data must hold at least 360 bytes of text, but got {size} bytes"):
        load_corpus(path, context=CONTEXT)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="but got 0 bytes"):
        load_corpus(tmp_path, context=CONTEXT)
