import json
from pathlib import Path

import pytest
import torch

from common import make_trainer, peak_gigabytes, publish, random_images, take_turns
from ricnet.training.trainer import Trainer

CPU = torch.device("cpu")


def test_candidates_take_turns_and_the_first_turn_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], []

    def candidate(name: str, seconds: list[float]) -> None:
        order.append(name)
        clock[0] += seconds.pop(0)

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    slow, quick = [90.0, 2.0, 9.0, 3.0], [90.0, 1.0, 1.0, 1.0]
    candidates = {"slow": lambda: candidate("slow", slow), "quick": lambda: candidate("quick", quick)}
    assert take_turns(candidates, CPU, turns=3) == {"slow": 3.0, "quick": 1.0}
    assert order == ["slow", "quick"] * 4


def test_time_is_that_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def candidate() -> None:
        clock[0] += 2.0

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert take_turns({"it": candidate}, CPU, turns=2, calls=5) == {"it": 2.0}


def test_file_holds_the_numbers_of_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"method": "ric", "ms": 12.3456, "peak GB": None}, {"method": "act", "ms": 98765.0, "peak GB": None}]
    publish("An update", rows, ["A note."], CPU, tmp_path / "new" / "it.json")
    printed, entry = capsys.readouterr().out, json.loads((tmp_path / "new" / "it.json").read_text(encoding="utf-8"))
    assert entry["rows"] == rows
    assert entry["hardware"]["torch"] == torch.__version__
    for text in ("An update", "12.3", "98,765", "A note.", torch.__version__):
        assert text in printed
    assert "peak GB" not in printed  # nothing was measured


def test_random_images_have_every_class_in_range_and_room_for_the_largest_batch() -> None:
    dataset = random_images(side=8, classes=1000)
    assert dataset.input_shape == (3, 8, 8)
    assert len(dataset.class_names) == 1000
    assert len(dataset.train) >= 4 * 512


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_peak_memory_is_the_same_when_asked_again_and_grows_with_the_batch(cuda_graph: bool) -> None:
    def trainer(batch: int) -> Trainer:
        small = {"encoder": "resnet10", "width": 0.25, "compile": "off", "cuda_graph": cuda_graph}
        return make_trainer("supervised", random_images(side=16), torch.device("cuda"), batch_size=batch, **small)

    first, larger = trainer(64), trainer(1024)
    first._step(), larger._step()  # in which cuDNN tries what is fastest, with more memory than it then takes
    once, again, more = peak_gigabytes(first), peak_gigabytes(first), peak_gigabytes(larger)
    assert again == pytest.approx(once, rel=0.05)
    assert more > 4 * (once - first.batches.feed.inputs.nbytes / 1e9)


def test_peak_memory_is_left_out_on_a_cpu() -> None:
    trainer = make_trainer("supervised", random_images(side=4), CPU, encoder="mlp", batch_size=8)
    assert peak_gigabytes(trainer) is None
