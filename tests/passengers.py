"""A table like the one everybody tries first: gaps, words, an identifier, a date, and a logistic truth."""

import numpy as np
import pandas as pd


def passengers(rows: int = 1_000, seed: int = 0) -> pd.DataFrame:
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
        1.2
        + 1.6 * (frame["Sex"] == "female")
        - 0.9 * (frame["Pclass"] - 1)
        - 0.03 * (frame["Age"] - 30)
        - 0.3 * frame["SibSp"]
        + 0.3 * np.log(frame["Fare"] / 20)
        + 0.3 * (frame["Embarked"] == "C")
    )
    frame["Survived"] = (random.random(rows) < 1 / (1 + np.exp(0.4 - logit))).astype(int)
    frame["Age"] = frame["Age"].mask(random.random(rows) < 0.2)
    return frame
