"""A typical table, from the file to predictions, with default settings."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import ricnet
from problems import read
from refusals import refusal
from ricnet.apps.cli import main
from ricnet.data.dataset import SEED, TEST_FRACTION, split_off
from ricnet.models.config import to_json

pytestmark = pytest.mark.usefixtures("no_pages")


def passengers(rows: int, seed: int = 0) -> pd.DataFrame:
    """What everybody tries first: words, gaps, an identifier, a date, and a logistic truth."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "PassengerId": np.arange(1, rows + 1),
            "Pclass": random.choice([1, 2, 3], rows, p=[0.25, 0.2, 0.55]),
            "Sex": random.choice(["male", "female"], rows, p=[0.65, 0.35]),
            "Age": random.gamma(6, 5, rows).round(1),
            "SibSp": random.poisson(0.5, rows),
            "Fare": random.lognormal(3, 1, rows).round(2),
            "Embarked": random.choice(["S", "C", "Q"], rows, p=[0.7, 0.2, 0.1]),
            "Booked": pd.Timestamp("1912-01-01") + pd.to_timedelta(random.integers(0, 91, rows), unit="D"),
        }
    )
    logit = (
        1.1
        + 2.4 * (frame["Sex"] == "female")
        - 1.3 * (frame["Pclass"] - 1)
        - 0.04 * (frame["Age"] - 30)
        - 0.4 * frame["SibSp"]
        + 0.4 * np.log(frame["Fare"] / 20)
        + 0.4 * (frame["Embarked"] == "C")
    )
    frame["Survived"] = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    frame["Age"] = frame["Age"].mask(random.random(rows) < 0.2)
    return frame


def logistic_regression_nll(frame: pd.DataFrame) -> float:
    """Of scikit-learn's usual pipeline on the same test rows, learned from all others."""
    rest, test = split_off(torch.tensor(frame["Survived"].to_numpy()), TEST_FRACTION, SEED)
    numbers, words = ["Pclass", "Age", "SibSp", "Fare"], ["Sex", "Embarked"]
    encode = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers), (OneHotEncoder(), words)
    )
    train, held_out = frame.iloc[rest.numpy()], frame.iloc[test.numpy()]
    fitted = make_pipeline(encode, LogisticRegression()).fit(train, train["Survived"])
    return float(log_loss(held_out["Survived"], fitted.predict_proba(held_out)))


def test_a_small_table_is_learned_in_seconds_and_nearly_as_well_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It took ten minutes, for an NLL of 1.60, where a coin has .69."""
    monkeypatch.chdir(tmp_path)
    frame = passengers(500)
    frame.to_csv("titanic.csv", index=False)
    began = time.process_time()
    main(["train", "titanic.csv", "--target", "Survived", "--device", "cpu"])
    assert time.process_time() - began < 60
    run = Path("runs/titanic-Survived-ric-on-policy-seed0")
    reached = read(run / "evaluation.json")["test"]
    assert reached["nll"] < logistic_regression_nll(frame) + 0.03
    assert reached["ece"] < 0.15
    told = " ".join(capsys.readouterr().err.split())
    assert "'PassengerId'" in told
    assert "'Booked'" in told
    model = ricnet.load(run)
    beliefs = model.predict_proba(frame)
    np.testing.assert_array_equal(beliefs, model.predict_proba("titanic.csv"))
    np.testing.assert_allclose(beliefs, model.refine(frame).final.exp(), atol=1e-6)
    answers = model.predict(frame)
    assert set(answers) == {"0", "1"}
    assert (answers == frame["Survived"].astype(str)).mean() > 0.7
    np.testing.assert_array_equal(answers, np.array(["0", "1"])[beliefs.argmax(1)])


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return passengers(300)


def test_cli_api_and_estimators_have_the_same_recipe(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "a.csv.gz", index=False)
    quick = {"epochs": 1, "device": "cpu"}
    by_frame = ricnet.train(frame, target="Survived", out=tmp_path / "a", **quick)
    by_file = ricnet.train(tmp_path / "a.csv.gz", target="Survived", out=tmp_path / "b", **quick)
    main(["train", f"{tmp_path}/a.csv.gz#Survived", "--epochs", "1", "--out", f"{tmp_path}/c", "--device", "cpu"])
    estimator = ricnet.RICClassifier(random_state=0, **quick).fit(frame.drop(columns="Survived"), frame["Survived"])
    settings = [
        {part: to_json(model.config)[part] for part in ("preset", "method", "network", "optimization")}
        for model in (by_frame, by_file, ricnet.load(tmp_path / "c"), estimator.classifier_)
    ]
    for entry in settings:  # estimators have no test rows, so more to learn from
        assert 32 < entry["optimization"].pop("batch_size") <= 64
    assert all(entry == settings[0] for entry in settings)
    assert settings[0]["method"]["name"] == "ric-on-policy"
    assert settings[0]["optimization"]["select"] == "nll"
    np.testing.assert_array_equal(by_frame.predict_proba(frame), by_file.predict_proba(frame))


def test_balanced_classes_are_answered_more_often(frame: pd.DataFrame, tmp_path: Path) -> None:
    rare = pd.concat([frame[frame["Survived"] == 0], frame[frame["Survived"] == 1].head(25)])
    rare.to_csv(tmp_path / "a.csv", index=False)
    settings = {"target": "Survived", "method": "supervised", "epochs": 10, "device": "cpu"}
    plain = ricnet.train(rare, out=tmp_path / "plain", **settings).predict_proba(rare)[:, 1].mean()
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    main(["train", f"{tmp_path}/a.csv", *flags, "--class-weight", "balanced", "--out", f"{tmp_path}/even"])
    even = ricnet.load(tmp_path / "even")
    assert even.config.class_weight == "balanced"
    assert plain < 0.3
    assert even.predict_proba(rare)[:, 1].mean() > plain + 0.15


def test_errors_name_missing_parts_of_a_frame(frame: pd.DataFrame, tmp_path: Path) -> None:
    with refusal("the data frame", "target"):
        ricnet.train(frame, out=tmp_path / "a")
    model = ricnet.train(frame, target="Survived", method="supervised", epochs=1, out=tmp_path / "a", device="cpu")
    with refusal("the data frame", "'Age'"):
        model.predict(frame.drop(columns="Age"))
    with refusal("the data frame, row 1", "'Fare'", "'much'"):
        model.refine(frame.head(2).assign(Fare=["7.5", "much"]))
    with pytest.warns(UserWarning, match="'Embarked'.*'X'"):
        model.predict(frame.head(2).assign(Embarked="X"))
