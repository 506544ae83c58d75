from collections.abc import Callable
from pathlib import Path

from made_runs import rewrite
from make_pretrained import card
from ricnet.report.runs import read_run


def test_the_card_says_what_was_measured_and_done(make_run: Callable[..., Path]) -> None:
    settings = {"epochs": 40, "batch_size": 128, "optimizer": "adamw", "lr": 0.003}
    folder = make_run(data="cifar10", optimization=settings, network={"encoder": "resnet18", "width": 0.25})
    (folder / "model.safetensors").write_bytes(bytes(2_500_000))
    run = read_run(folder)
    text = card(run, "cifar10")
    for said in (
        f"| Test accuracy | {100 * run.test['accuracy']:.2f} % |",
        f"| ECE (15 bins) | {run.test['ece']:.3f} |",
        f"| NLL | {run.test['nll']:.3f} |",
        f"| Mean steps | {run.test['mean_steps']:.1f} |",
        "| on 300 test examples |  |",
        "ric predict pretrained:cifar10 photo.png",
        "resnet18 of width 0.25, 40 epochs of batches of 128, adamw at 0.003, seed 0",
        "of epoch 31, chosen on validation data. 61 seconds of training on a CPU",
        "2.5 MB",
        "1,212 to train on, 135 to choose the epoch, 300 to test",
        "Do not use it for decisions about people",
        "near-duplicate",
    ):
        assert said in text
    rewrite(folder / "config.json", lambda header: header["config"].update(data="digits"))
    assert "near-duplicate" not in card(read_run(folder), "digits")  # a fact of another data set
