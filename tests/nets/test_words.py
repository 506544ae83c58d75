"""Encoders of texts."""

import math

import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn

from ricnet.data.columns import Columns, columns_from_json
from ricnet.data.inputs import read_inputs
from ricnet.data.tables import Table
from ricnet.data.texts import Text, token_ids
from ricnet.nets import words
from ricnet.nets.backbone import Backbone
from ricnet.nets.encoders import EncoderOptions, build_encoder
from ricnet.nets.words import FEATURES, GAIN, SLOTS, TABLE_ROWS, TfIdf, known_words

TEXTS = ["a warm warm film", "a cold film", "warm, wise", "a a a a", "wise and cold and dull"]


def test_words_are_the_mean_of_their_rows_and_padding_is_none_of_them() -> None:
    encoder = build_encoder(EncoderOptions("words", width=0.25), (4,))
    table, layer = encoder.table.weight, encoder.layer
    beyond = TABLE_ROWS - 1  # the first id that comes back to row 1
    ids = torch.tensor([[7, beyond + 6, 3, 0], [3, 0, 7, 7], [0, 0, 0, 0]], dtype=torch.int32)
    means = [(table[8] + table[7] + table[4]) / 3, (table[4] + 2 * table[8]) / 3, torch.zeros(16)]
    torch.testing.assert_close(encoder(ids), layer(torch.stack(means)))


def fitted(texts: list[str]) -> tuple[TfIdf, Tensor]:
    ids = torch.from_numpy(Text("text", max(len(token_ids(text, 99)) for text in texts)).rows(texts))
    encoder = TfIdf(4)
    encoder.fit(ids)
    return encoder, ids


def by_feature(encoder: TfIdf, ids: Tensor) -> Tensor:
    """The weights of each feature, summed over its tokens."""
    features, weights = encoder.weights(ids)
    return torch.zeros(len(ids), FEATURES).scatter_add(1, features, weights)


def test_weights_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "PAIR_WEIGHT", 1.0)
    encoder, ids = fitted(TEXTS)
    pattern = r"\w+|[^\w\s]"
    peer = TfidfVectorizer(sublinear_tf=True, token_pattern=pattern, ngram_range=(1, 2)).fit(TEXTS)
    slots = [token_ids(name, 1)[0] % SLOTS if " " not in name else pair(name) for name in peer.get_feature_names_out()]
    features = encoder.feature[slots].long()
    assert len(set(features.tolist())) == len(features) == int((encoder.idf > 0).sum())
    expected = torch.from_numpy(peer.transform(TEXTS).toarray()).float()
    torch.testing.assert_close(by_feature(encoder, ids)[:, features], expected)
    assert not by_feature(encoder, ids)[:, 0].any()


def pair(name: str) -> int:
    """Slot of a word pair: the second id of a text of these two words."""
    return token_ids(name, 3)[1] % SLOTS


def test_the_weight_of_a_word_by_hand() -> None:
    """Two of two texts have the word x, one the pair y: their idf is 1 and ln(3 / 2) + 1; a pair counts half."""
    encoder = TfIdf(2)
    encoder.fit(torch.tensor([[5, 9, 5], [5, 0, 0]], dtype=torch.int32))
    y = (math.log(3 / 2) + 1) / 2
    x = 1 + math.log(2)  # twice in the text
    features, weights = encoder.weights(torch.tensor([[5, 9, 5]], dtype=torch.int32))
    norm = math.hypot(x, y)
    torch.testing.assert_close(weights, torch.tensor([[x / 2, y, x / 2]]) / norm)
    assert features.tolist() == [[1, 2, 1]]


def test_an_embedding_is_the_weighted_sum_of_the_vectors_and_starts_at_0() -> None:
    encoder, ids = fitted(TEXTS)
    assert not encoder(ids).any()
    torch.nn.init.normal_(encoder.table.weight)
    torch.testing.assert_close(encoder(ids), GAIN * by_feature(encoder, ids) @ encoder.table.weight)


def test_padding_and_unknown_words_are_ignored() -> None:
    encoder, ids = fitted(TEXTS)
    torch.nn.init.normal_(encoder.table.weight)
    padded = torch.cat([ids, torch.zeros(len(ids), 3, dtype=torch.int32)], 1)
    torch.testing.assert_close(encoder(padded), encoder(ids))
    column = Text("text", 9)
    known, more, none = torch.from_numpy(column.rows(["dull", "Zzz dull", "zzz"]))
    torch.testing.assert_close(encoder(more[None]), encoder(known[None]))
    assert not encoder(torch.stack([none, 0 * none])).any()


def test_the_features_in_most_texts_have_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "FEATURES", 3)
    monkeypatch.setattr(words, "TEXTS_AT_ONCE", 2)  # counted in three parts
    encoder = TfIdf(2)
    rows = [[7, 3, 7], [8, 2, 9], [9, 2, 8], [8, 2, 0], [9, 2, 0]]  # the pair 2 is in most texts, but words come first
    encoder.fit(torch.tensor(rows, dtype=torch.int32))
    assert encoder.feature[[7, 8, 9, 2, 3]].tolist() == [0, 1, 2, 0, 0]
    encoder.fit(torch.tensor([[7, 3, 0], [7, 2, 7], [7, 2, 0]], dtype=torch.int32))  # again, from the start
    assert encoder.feature[[7, 8, 9, 2, 3]].tolist() == [1, 0, 0, 2, 0]


def test_a_network_fits_it_to_the_training_texts() -> None:
    _, ids = fitted(TEXTS)
    encoder = build_encoder(EncoderOptions("tfidf", width=0.25), (ids.shape[1],))
    Backbone(encoder, (ids.shape[1],)).fit_normalization(ids)
    assert encoder.idf.any()
    assert encoder(ids).shape == (len(ids), 16)


def test_texts_without_a_known_word_get_a_note() -> None:
    encoder, _ = fitted(TEXTS)
    columns = Columns("label", (Text("review", 9),)).with_known_words(known_words(nn.Sequential(encoder)))
    table = Table("new.csv", {"review": ["zzz qqq", "zzz warm", " ", "фильм"]}, range(4))
    empty, unknown = columns.surprises(table)
    assert "1 of 4 texts are empty" in empty
    assert "2 of 4 texts have no word that the model knows" in unknown
    [note] = read_inputs(["zzz qqq", "a warm film", "qqq zzz"], (9,), columns).notes
    assert "2 of 3 texts have no word" in note
    assert columns_from_json(columns.to_json(), "it") == columns
    assert known_words(nn.Linear(1, 1)) is None
