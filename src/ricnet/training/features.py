"""Features of a frozen encoder, computed once and cached; training then sees rows of numbers.

The key of a row's features is a hash of the encoder, with its weights, and of the row. So every run, seed, fold and
split with this row can use them, and a stopped run does not repeat them. Each row has a digest; a damaged row is
computed again.
"""

import copy
import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Num
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from ricnet.data import Augmentation, Dataset, Split, augment
from ricnet.models.classifier import Classifier, after_encoder, backbone_of
from ricnet.models.locate import cache_folder, describe_encoder
from ricnet.nets.backbone import CPU_BATCH, GPU_BATCH, Exits, all_features, as_embedding, divide, in_eval_mode
from ricnet.nets.pretrained import Pretrained, TextEncoder
from ricnet.terminal import say

CHUNK = 8 * CPU_BATCH
"""Rows that are looked up, encoded and stored together; a stopped run loses at most this many."""

TABLE = "checked_features"
"""Table of features.sqlite."""


def featured(
    dataset: Dataset,
    encoder: nn.Module,
    device: torch.device,
    copies: int = 0,
    augmentation: Augmentation = Augmentation(),  # noqa: B008 — it is frozen
    console: Console | None = None,
    exits: Exits = "none",
) -> Dataset:
    """The data with features in place of its inputs, which are kept in `shown`; with `exits` the features of all
    stages, concatenated. `copies` augmented copies of each training image are added, the same in every run."""
    rows = dataset.train
    train = [rows, *(replace(rows, inputs=_vary(rows.inputs, augmentation, number)) for number in range(copies))]
    store = Features(encoder, device, console, exits)
    with store.progress(sum(map(len, (*train, dataset.val, dataset.test))), dataset.unit):
        parts = [store.split(part) for part in train]
        val, test = store.split(dataset.val), store.split(dataset.test)
    return replace(dataset, train=parts[0] if len(parts) == 1 else _joined(parts), val=val, test=test)


def behind_encoder(classifier: Classifier, dataset: Dataset) -> tuple[Classifier, Dataset]:
    """With a frozen encoder, the part of the classifier after it and the features of the data; else both unchanged."""
    frozen = backbone_of(classifier.model).frozen_encoder
    if frozen is None:
        return classifier, dataset
    device = next(classifier.model.parameters()).device
    return after_encoder(classifier), featured(dataset, frozen, device, exits=classifier.config.network.exits)


def _vary(images: Num[Tensor, "n ..."], augmentation: Augmentation, number: int) -> Num[Tensor, "n ..."]:
    generator = torch.Generator().manual_seed(number)
    return torch.cat([augment(part, augmentation, generator=generator) for part in images.split(CHUNK)])


def _joined(parts: list[Split]) -> Split:
    """Copies of the same rows in one split; texts have no copies."""
    first, weights = parts[0], parts[0].weights
    return Split(
        torch.cat([part.inputs for part in parts]),
        first.labels.repeat(len(parts)),
        None if weights is None else weights.repeat(len(parts)),
        first.texts,
        torch.cat([part.shown for part in parts if part.shown is not None]),
    )


class Features:
    """Features of one encoder. If the cache cannot be used, they are computed without it, and a note says so."""

    def __init__(
        self, encoder: nn.Module, device: torch.device, console: Console | None = None, exits: Exits = "none"
    ) -> None:
        # a copy: the encoder is shared, and must stay on its device
        self.encoder = (encoder if device.type == "cpu" else copy.deepcopy(encoder)).to(device)
        self.network = self.encoder if exits == "none" else partial(all_features, divide(self.encoder, exits))
        self.device = device
        self.console = console or Console(stderr=True)
        self.about = json.dumps([describe_encoder(encoder), exits], sort_keys=True).encode()
        self.probe = b""
        """Output of a user's module for one input: weights alone do not identify what it computes."""
        self.path: Path | None = cache_folder() / "features.sqlite"
        self.bar = Progress(console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("", total=None)

    def progress(self, rows: int, unit: str) -> Progress:
        self.bar.update(self.task, total=rows, description=f"encoding {rows:,} {unit}")
        return self.bar

    def split(self, split: Split) -> Split:
        return replace(split, inputs=self(split.inputs), shown=split.inputs)

    def __call__(self, inputs: Num[Tensor, "n ..."]) -> Float[Tensor, "n size"]:
        if not len(inputs):
            return self._encode(inputs.new_zeros(1, *inputs.shape[1:]))[:0]
        if not isinstance(self.encoder, Pretrained) and not self.probe:
            self.probe = self._encode(inputs.new_ones(1, *inputs.shape[1:])).numpy().tobytes()
        return torch.cat([self._chunk(part) for part in inputs.split(CHUNK)])

    def _chunk(self, inputs: Num[Tensor, "n ..."]) -> Float[Tensor, "n size"]:
        keys = [self._key(row) for row in inputs]
        known = self._look_up(keys)
        missing = [place for place, key in enumerate(keys) if key not in known]
        if missing and isinstance(self.encoder, TextEncoder):  # a batch of texts takes as long as its longest
            missing = [missing[place] for place in self.encoder.lengths(inputs[missing]).argsort().tolist()]
        if missing:
            made = self._encode(inputs[missing]).numpy()
            new = {keys[place]: row.tobytes() for place, row in zip(missing, made, strict=True)}
            self._keep(new)
            known |= new
        self.bar.advance(self.task, len(inputs))
        rows = np.stack([np.frombuffer(known[key], dtype=np.float32) for key in keys])
        return torch.from_numpy(rows)

    def _key(self, row: Num[Tensor, "..."]) -> bytes:
        content = row.cpu().contiguous().numpy()
        about = f"{content.dtype} {content.shape}".encode()
        return hashlib.blake2b(self.about + self.probe + about + content.tobytes(), digest_size=16).digest()

    @torch.no_grad()
    def _encode(self, inputs: Num[Tensor, "n ..."]) -> Float[Tensor, "n size"]:
        rows = CPU_BATCH if self.device.type == "cpu" else GPU_BATCH
        with in_eval_mode(self.encoder):
            parts = [as_embedding(self.network(batch.to(self.device))).float().cpu() for batch in inputs.split(rows)]
        return torch.cat(parts)

    def _look_up(self, keys: list[bytes]) -> dict[bytes, bytes]:
        """The rows that the cache holds undamaged."""
        if self.path is None:
            return {}
        try:
            with closing(self._open()) as cache:
                question = f"SELECT key, features, digest FROM {TABLE} WHERE key IN ({','.join('?' * len(keys))})"
                rows = cache.execute(question, keys).fetchall()
        except (sqlite3.Error, OSError) as error:
            self._do_without(error)
            return {}
        return {key: row for key, row, digest in rows if isinstance(row, bytes) and _digest(key, row) == digest}

    def _keep(self, new: dict[bytes, bytes]) -> None:
        if self.path is None:
            return
        try:
            with closing(self._open()) as cache, cache:
                rows = [(key, row, _digest(key, row)) for key, row in new.items()]
                cache.executemany(f"INSERT OR REPLACE INTO {TABLE} VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._do_without(error)

    def _open(self) -> sqlite3.Connection:
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cache = sqlite3.connect(self.path, timeout=60)
        columns = "key BLOB PRIMARY KEY, features BLOB, digest BLOB"
        cache.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns}) WITHOUT ROWID")
        return cache

    def _do_without(self, error: Exception) -> None:
        say([f"note: {self.path} cannot be used ({error}); features are not kept for the next run."], self.console)
        self.path = None


def _digest(key: bytes, row: bytes) -> bytes:
    return hashlib.blake2b(key + row, digest_size=16).digest()
