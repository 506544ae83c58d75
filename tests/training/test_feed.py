from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ricnet.data import Dataset
from ricnet.training import feed
from ricnet.training.api import configure, run
from ricnet.training.feed import Feed
from ricnet.training.run import RunFolder

CPU = torch.device("cpu")
INPUTS = torch.arange(60.0).view(20, 3)


def test_what_fits_is_indexed_where_it_is() -> None:
    rows = torch.tensor([3, 1])
    resident = Feed(INPUTS, CPU, 2)
    assert not resident.streams
    assert resident.inputs is INPUTS
    assert torch.equal(resident.take(rows), INPUTS[rows])


def test_what_does_not_fit_comes_batch_after_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "fits", lambda *_: False)
    streaming = Feed(INPUTS, CPU, 5)
    order = torch.randperm(20).split(5)
    place = streaming.take(order[0])
    for rows, following in [(0, 1), (1, 2), (2, 0), (3, 1), (1, 1), (1, 3)]:  # twice it is not what was foretold
        streaming.stage(order[rows], order[following])
        assert torch.equal(streaming.take(order[rows]), INPUTS[order[rows]])
        assert streaming.take(order[rows]) is place


def test_a_gpu_holds_what_leaves_it_room(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(feed, "free_bytes", lambda _: 2 * INPUTS.nbytes)
    assert feed.fits(INPUTS, gpu)
    assert not feed.fits(torch.cat([INPUTS, INPUTS[:1]]), gpu)


def test_what_is_on_the_device_stays_there_however_little_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "free_bytes", lambda _: 0)
    device = torch.device("meta")
    resident = Feed(INPUTS.to(device), device, 2)
    assert not resident.streams
    assert not feed.fits(INPUTS, torch.device("cuda"))


def test_a_gpu_without_a_number_is_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    cuda, first, second = (torch.device(name) for name in ("cuda", "cuda:0", "cuda:1"))
    assert feed.is_same(second, cuda)
    assert not feed.is_same(first, cuda)
    assert feed.is_same(first, first)
    assert not feed.is_same(first, second)
    assert not feed.is_same(CPU, first)
    assert feed.is_same(torch.device("mps:0"), torch.device("mps"))


def test_training_does_not_depend_on_where_the_data_lies(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(dataset, "ric", "fast", epochs=2, batch_size=20, width=0.1, horizon=2)
    run(config, dataset, RunFolder(tmp_path / "resident"), CPU)
    monkeypatch.setattr(feed, "fits", lambda *_: False)
    run(config, dataset, RunFolder(tmp_path / "streaming"), CPU)
    resident, streaming = (load_file(tmp_path / n / "model.safetensors") for n in ("resident", "streaming"))
    assert all(torch.equal(resident[name], streaming[name]) for name in resident)
