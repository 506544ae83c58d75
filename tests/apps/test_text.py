"""Texts in all interfaces: one small run on a table of reviews, used by CLI, API, server and estimators."""

import html
import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import httpx
import numpy as np
import pytest
from sklearn.model_selection import cross_val_score

import ricnet
from problems import MadeOnce
from refusals import refusal
from ricnet.apps.cli import main
from ricnet.apps.estimators import RICClassifier
from ricnet.errors import RicnetError
from ricnet.models.hub import save_pretrained
from ricnet.training.trainer import Trainer

from .server.conftest import serving

GOOD, BAD = ("warm", "funny", "wise", "lovely"), ("cold", "dull", "empty", "awful")
TEXTS = [f"a {first} and {second} film" for words in (GOOD, BAD) for first in words for second in words]
LABELS = ["good"] * 16 + ["bad"] * 16


@pytest.fixture(scope="module")
def reviews(made_once: MadeOnce) -> Path:
    rows = zip(TEXTS, LABELS, range(len(TEXTS)), strict=True)
    lines = [json.dumps({"review": text, "label": label, "n": n}) for text, label, n in rows]
    folder = made_once("reviews", lambda folder: (folder / "reviews.jsonl").write_text("\n".join(lines)))
    return folder / "reviews.jsonl"


@pytest.fixture(scope="module")
def run(reviews: Path, made_once: MadeOnce) -> Path:
    small = ["--epochs", "20", "--batch-size", "8", "--lr", "0.03", "--width", "0.1", "--device", "cpu"]
    given = ["train", str(reviews), "--target", "label", "--text", "review", *small]
    return made_once("texts", lambda folder: main([*given, "--out", str(folder / "run")])) / "run"


def asked(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, object]]:
    capsys.readouterr()
    main(["predict", *map(str, arguments), "--json"])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_sentence_is_answered_and_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, run, "a lovely, wise film", "Is it dull?")
    assert [(one["input"], one["answer"]) for one in found] == [("a lovely, wise film", "good"), ("Is it dull?", "bad")]
    main(["predict", str(run), "a warm film", "--trace"])
    assert "a warm film: good" in capsys.readouterr().out
    main(["predict", str(run)])  # the examples that came with it
    assert " film" in capsys.readouterr().out


def test_the_default_for_texts_is_algorithm_1_and_resume_finds_it_among_others(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"target": "label", "text": "review", "epochs": 1, "horizon": 2, "batch_size": 8, "device": "cpu"}
    ours = Path("runs/reviews-label-ric-seed0")
    assert ricnet.train(reviews, **given).folder == ours
    assert ricnet.train(reviews, **given, method="ric-on-policy").folder.name == "reviews-label-ric-on-policy-seed0"
    assert ricnet.train(reviews, **given, resume=True).folder == ours
    capsys.readouterr()
    main(["train", str(reviews), "--target", "label", "--text", "review", "--resume"])
    assert f"{ours} is finished" in " ".join(capsys.readouterr().err.split())


def test_resume_with_text_leaves_out_a_run_on_the_other_columns(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"target": "label", "epochs": 1, "horizon": 2, "batch_size": 8, "device": "cpu"}
    table = ricnet.train(reviews, **small).folder
    assert ricnet.train(reviews, **small, text="review").folder == Path("runs/reviews-label-ric-seed0")
    assert ricnet.train(reviews, **small, text="review", resume=True).folder == Path("runs/reviews-label-ric-seed0")
    shutil.rmtree("runs/reviews-label-ric-seed0")
    assert ricnet.train(reviews, **small, text="review", resume=True).folder == Path("runs/reviews-label-ric-seed0")
    assert table == Path("runs/reviews-label-ric-on-policy-seed0")


def test_files_folders_and_tables_of_texts_are_answered(
    run: Path, reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("warm\nand wise")
    (tmp_path / "b.txt").write_text("cold and awful")
    single, *both = asked(capsys, run, tmp_path / "a.txt", tmp_path)
    assert (single["input"], single["answer"]) == (str(tmp_path / "a.txt"), "good")
    assert [one["answer"] for one in both] == ["good", "bad"]
    assert [one["answer"] for one in asked(capsys, run, reviews)] == LABELS
    for missing in (tmp_path / "c.txt", "reviews.csv", "mails/*.txt"):
        with pytest.raises(SystemExit, match="2"):
            asked(capsys, run, missing)


def test_it_is_measured_on_its_own_texts_and_on_a_folder_of_others(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, word in (("good", "funny"), ("bad", "empty")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text(f"so {word} and so {word}")
    for data, rows in (([], 8), (["--data", str(tmp_path)], 2)):
        capsys.readouterr()
        main(["evaluate", str(run), "--json", *data])
        test = json.loads(capsys.readouterr().out)["test"]
        assert (test["n"], test["accuracy"]) == (rows, 1.0)


def test_a_model_answers_texts_in_python_and_comes_back_from_a_folder(run: Path, tmp_path: Path) -> None:
    model = ricnet.load(run)
    assert model.predict(TEXTS).tolist() == LABELS
    assert model.predict("awful").tolist() == ["bad"]
    (tmp_path / "a.txt").write_text("lovely")
    assert model.predict(tmp_path / "a.txt").tolist() == ["good"]
    assert model.predict([tmp_path / "a.txt", "awful"]).tolist() == ["good", "bad"]
    with refusal("text 3 of 3 is None"):
        model.predict(["awful", "", None])
    with pytest.warns(ricnet.InputWarning) as told:
        model.predict(str(tmp_path / "a.txt"))
    assert "is classified as a text" in str(told[0].message)
    with refusal("texts", "token ids"):
        model.refine(np.zeros((1, *model.input_shape), np.float32))
    shared = save_pretrained(model, tmp_path / "shared")
    assert 'pipeline_tag: "text-classification"' in (shared / "README.md").read_text(encoding="utf-8")
    assert np.array_equal(ricnet.load(shared).predict_proba(TEXTS), model.predict_proba(TEXTS))


def test_python_warns_once_of_texts_without_a_known_word(run: Path) -> None:
    """A warning that users can filter; an estimator gives the same."""
    model = ricnet.load(run)
    estimator = RICClassifier(epochs=1, width=0.1, random_state=0, device="cpu").fit(TEXTS, LABELS)
    for ask in (model.predict, model.predict_proba, model.refine, estimator.predict, estimator.refine):
        with pytest.warns(ricnet.InputWarning) as told:
            ask(["so lovely", "zyx wvu", "wvu zyx", " "])
        words = [str(warning.message).partition(" texts ")[::2] for warning in told]
        assert words == [
            ("1 of 4", "are empty; ignore their predictions."),
            ("2 of 4", "have no word that the model knows; ignore their predictions."),
        ]


def test_the_report_shows_the_texts(run: Path) -> None:
    assert "<blockquote>a " in (run / "report.html").read_text(encoding="utf-8")


def test_the_server_reads_texts(run: Path) -> None:
    def said(client: httpx.Client, **body: object) -> httpx.Response:
        return client.post("/v1/predict", json=body)

    with serving(ricnet.load(run), max_batch=3) as client:
        answers = said(client, texts=["so lovely", "so dull", " "]).json()
        assert [one["answer"] for one in answers["predictions"]][:2] == ["good", "bad"]
        assert answers["notes"] == ["empty texts, ignore their predictions: texts[2]."]
        note = "texts without a word that the model knows, ignore their predictions: texts[1]."
        assert said(client, texts=["so lovely", "zyx wvu"]).json()["notes"] == [note]
        assert said(client, texts="cold").json()["predictions"][0]["answer"] == "bad"
        assert said(client, rows={"review": "cold"}).json()["predictions"][0]["answer"] == "bad"
        assert said(client, texts=["a"] * 4).status_code == 413
        refused = said(client, features=[1, 2]).json()["error"]
        assert refused == 'this model reads no features; send {"texts": ["a sentence"]}.'
        assert client.get("/v1/model").json()["input"]["kind"] == "text"
        assert "film" in client.get("/v1/examples").json()[0]["text"]
        assert '"texts":' in html.unescape(client.get("/docs").text)


@pytest.mark.slow
def test_an_exported_file_takes_token_ids(run: Path, tmp_path: Path) -> None:
    """The file is compared with PyTorch before it is written. In a process of its own: torch cannot trace what checks
    types."""
    runtime = pytest.importorskip("onnxruntime")
    out = tmp_path / "model.onnx"
    done = subprocess.run([sys.executable, "-m", "ricnet", "export", run, "--out", out], capture_output=True, text=True)
    assert done.stderr == ""
    assert "token ids for each text (int32)" in done.stdout
    ids = np.zeros((1, *ricnet.load(run).input_shape), np.int32)
    ids[0, 0] = zlib.crc32(b"dull") & 0x7FFFFFFF
    probabilities, _ = runtime.InferenceSession(out).run(None, {"input": ids})
    assert np.allclose(probabilities, ricnet.load(run).predict_proba("Dull"), atol=1e-5)


def test_an_estimator_learns_from_a_list_of_texts() -> None:
    model = RICClassifier(epochs=20, batch_size=8, lr=0.03, width=0.1, random_state=0, device="cpu")
    assert model.fit(TEXTS, LABELS).predict(["so warm", "so cold"]).tolist() == ["good", "bad"]
    assert cross_val_score(model, np.array(TEXTS), LABELS, cv=2).mean() > 0.9
    with refusal("texts", kind=ValueError):
        model.predict(np.zeros((2, 3)))


def test_encoders_of_other_data_are_refused(reviews: Path, tmp_path: Path) -> None:
    how = {"target": "label", "text": "review", "out": tmp_path / "run", "device": "cpu"}
    with refusal("encoder", "mlp"):
        ricnet.train(reviews, encoder="mlp", **how)
    with refusal("encoder", "words"):
        ricnet.train(reviews, target="label", encoder="words", out=tmp_path / "run", device="cpu")


def save_text_checkpoint(folder: Path) -> Path:
    """A tiny one with random weights, and a tokenizer of whole words that fills up with 1."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    transformers.utils.logging.disable_progress_bar()
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=12, pad_token_id=1, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    known = {word: place for place, word in enumerate(["[UNK]", "[PAD]", *GOOD, *BAD, "a", "and", "film", "so"])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    return folder


def test_a_checkpoint_brings_its_tokenizer_which_is_then_part_of_the_model(reviews: Path, tmp_path: Path) -> None:
    folder = save_text_checkpoint(tmp_path / "bert")
    how = {"target": "label", "text": "review", "device": "cpu", "epochs": 20, "lr": 0.03, "batch_size": 8}
    model = ricnet.train(reviews, encoder=f"hf:{folder}", out=tmp_path / "run", method="ric-on-policy", **how)
    assert model.text is not None
    assert model.text.rows(["so warm film", "x"]).tolist() == [[13, 2, 12, 1, 1], [0, 1, 1, 1, 1]]
    assert model.config.network.freeze
    shutil.rmtree(folder)
    again = ricnet.load(tmp_path / "run")
    assert np.array_equal(again.predict_proba(TEXTS), model.predict_proba(TEXTS))
    assert (again.predict(TEXTS) == LABELS).mean() > 0.8
    left = ricnet.train(
        reviews, encoder=f"hf:{save_text_checkpoint(folder)}", exits="block", out=tmp_path / "exits", **how
    )
    shutil.rmtree(folder)
    again = ricnet.load(tmp_path / "exits")
    assert len(again.model.costs) == 2
    assert np.array_equal(again.predict_proba(TEXTS), left.predict_proba(TEXTS))
    assert again.refine(["so warm film"]).cost is not None
    (save_text_checkpoint(folder) / "tokenizer.json").unlink()
    with refusal("tokenizer.json", "save_pretrained"):
        ricnet.train(reviews, encoder=f"hf:{folder}", out=tmp_path / "other", **how)


def test_a_stopped_run_of_texts_goes_on_without_the_checkpoint(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = save_text_checkpoint(tmp_path / "bert"), tmp_path / "run"

    def stop(trainer: Trainer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stop)
        with pytest.raises(RicnetError, match="stopped"):
            ricnet.train(
                reviews, target="label", text="review", encoder=f"hf:{folder}", epochs=2, out=run, device="cpu"
            )
    shutil.rmtree(folder)
    assert main(["train", "--out", str(run), "--resume", "--device", "cpu"]) is None
    assert ricnet.load(run).text is not None
