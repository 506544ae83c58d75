"""Encoders of texts. They read token ids, which are hashes of words and word pairs (`data.texts`); 0 is padding."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor, nn

from ricnet.nets.fitted import FittedLayer

TABLE_ROWS = 1 << 15
"""Rows of the embedding table of `Words`; words with the same hash share one."""
SLOTS = 1 << 20
"""Number of hashes that `TfIdf` distinguishes; ids are taken modulo this number."""
FEATURES = 1 << 14
"""Words and word pairs with a vector in `TfIdf`, plus one for padding. More cost time at every update."""
GAIN = 3.0
"""Factor of the embedding of `TfIdf`. Adam moves a vector by the learning rate, however small its weights are, so a
larger factor learns more from each text."""
PAIR_WEIGHT = 0.5
"""Factor of the weight of a word pair; most pairs are rare and would outweigh the words."""
TEXTS_AT_ONCE = 1_024
"""Texts whose words are counted at once; limits memory."""


class Words(nn.Module):
    """Token ids (batch, tokens) → (batch, size): the mean vector of a text's words and word pairs, then a layer
    (fastText, Joulin et al. 2016). Ids are taken modulo the rows of the table."""

    vocabulary = 1 << 31

    def __init__(self, size: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.table = nn.Embedding(TABLE_ROWS, size, padding_idx=0)
        nn.init.uniform_(self.table.weight, -1 / size, 1 / size)  # as fastText; larger ones over-fit
        nn.init.zeros_(self.table.weight[0])
        self.layer = nn.Sequential(nn.Linear(size, size), activation())

    def forward(self, ids: Integer[Tensor, "batch tokens"]) -> Float[Tensor, "batch size"]:
        rows = torch.where(ids > 0, ids.long() % (self.table.num_embeddings - 1) + 1, 0)
        known = (rows > 0).sum(1, keepdim=True).clamp(min=1)
        return self.layer(self.table(rows).sum(1) / known)  # type: ignore[no-any-return]


class TfIdf(FittedLayer):
    """Token ids (batch, tokens) → (batch, size): GAIN times the sum of a learned vector per word and word pair,
    weighted by tf-idf. Vectors start at 0, so a linear head after it begins as logistic regression on tf-idf.

    A feature is a word or a word pair. FEATURES − 1 of them have vectors, first the words that occur in most training
    texts, then such pairs; all others are ignored. A feature that occurs tf times in a text and in df of n training
    texts has the weight (1 + ln tf)·(ln((1 + n)/(1 + df)) + 1), for pairs times PAIR_WEIGHT, divided by the Euclidean
    norm of the weights of the text, as in scikit-learn with sublinear_tf. Words are at even positions, counted from 0,
    and pairs at odd ones.
    """

    vocabulary = 1 << 31
    feature: Tensor
    """Feature of each slot; 0 for none."""
    idf: Tensor
    """Inverse document frequency of each feature, times PAIR_WEIGHT for pairs; 0 for the first, which stands for
    padding and unknown words."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("feature", torch.zeros(SLOTS, dtype=torch.int16))
        self.register_buffer("idf", torch.zeros(FEATURES))
        self.table = nn.Embedding(FEATURES, size)
        nn.init.zeros_(self.table.weight)

    @torch.no_grad()
    def fit(self, ids: Integer[Tensor, "n tokens"], labels: Int64[Tensor, "n"] | None = None) -> None:
        """Choose features and compute their idf from the training texts."""
        self.feature.zero_()
        self.idf.zero_()
        taken = 1
        for first, weight in ((0, 1.0), (1, PAIR_WEIGHT)):
            frequency = document_frequency(ids[:, first::2])
            frequency[self.feature > 0] = 0  # a pair with the hash of a word is taken for the word
            kept = frequency.argsort(descending=True, stable=True)[: FEATURES - taken]
            kept = kept[frequency[kept] > 0]
            self.feature[kept] = torch.arange(taken, taken + len(kept), dtype=torch.int16)
            idf = ((1 + len(ids)) / (1 + frequency[kept])).log() + 1
            self.idf[taken : taken + len(kept)] = weight * idf
            taken += len(kept)

    def weights(
        self, ids: Integer[Tensor, "batch tokens"]
    ) -> tuple[Int64[Tensor, "batch tokens"], Float[Tensor, "batch tokens"]]:
        """Feature of each token, and its weight; tokens of the same feature share the weight of the feature."""
        features = torch.where(ids > 0, self.feature[ids.long() % SLOTS].long(), 0)
        ones = torch.ones_like(features, dtype=self.idf.dtype)
        counts = ones.new_zeros(len(ids), FEATURES).scatter_add(1, features, ones).gather(1, features)
        weights = self.idf[features] * (1 + counts.log())
        norm = (weights.square() / counts).sum(1, keepdim=True).sqrt()
        return features, weights / counts / norm.clamp(min=1e-6)

    def forward(self, ids: Integer[Tensor, "batch tokens"]) -> Float[Tensor, "batch size"]:
        features, weights = self.weights(ids)
        return GAIN * (weights.unsqueeze(1) @ self.table(features)).squeeze(1)  # type: ignore[no-any-return]


def known_words(network: nn.Module) -> Bool[np.ndarray, "slots"] | None:
    """Mask of the slots that have a feature in the `TfIdf` of a network; None for networks without one."""
    found = next((module for module in network.modules() if isinstance(module, TfIdf)), None)
    return None if found is None else (found.feature > 0).numpy(force=True)


def document_frequency(ids: Integer[Tensor, "n tokens"]) -> Int64[Tensor, "slots"]:
    """Number of texts that have an id of each slot."""
    frequency = torch.zeros(SLOTS, dtype=torch.int64)
    for part in ids.split(TEXTS_AT_ONCE):
        slots = torch.where(part > 0, part.long() % SLOTS, -1).sort(1).values
        first = slots >= 0
        first[:, 1:] &= slots[:, 1:] != slots[:, :-1]
        frequency += slots[first].bincount(minlength=SLOTS)
    return frequency
