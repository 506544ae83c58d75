import json
from pathlib import Path

import pytest

from ricnet.apps.hub_card import hub_card
from ricnet.errors import RicnetError
from ricnet.report.page import page_html
from ricnet.report.runs import group_seeds, read_run, read_runs
from ricnet.report.step_words import refinement_words

from .conftest import MakeRun, rewrite


def test_a_report_of_a_run_whose_later_steps_are_worse_says_so(make_run: MakeRun) -> None:
    """Nothing on the page may say that its steps improve anything, or that it stops by itself."""
    folder = make_run(worse=True)
    test = json.loads((folder / "evaluation.json").read_text())["test"]
    first = test["per_step"][0]["nll"]
    best = min(test["per_step"], key=lambda step: step["nll"])
    assert test["nll"] > first + 0.1
    page = page_html(group_seeds(read_runs([folder])))
    assert (
        "On the test set it ends worse than its first step: "
        f"NLL {first:.3f} after the first, {test['nll']:.3f} where it stops, lowest after {best['step']} steps, "
        f"{best['nll']:.3f}."
    ) in page
    assert "changes it in up to 20 steps, which it always makes." in page
    for claim in ("improve", "better than its first", "by itself", "the most gained after"):
        assert claim not in page, claim


def test_a_report_of_a_run_whose_steps_help_says_by_how_much(make_run: MakeRun) -> None:
    group = group_seeds(read_runs([make_run()]))[0]
    first, halt = group.first.test["per_step"][0]["nll"], group.first.test["nll"]
    assert halt < first
    words = refinement_words(group)
    assert f"it ends better than its first step: NLL {first:.3f} after the first, {halt:.3f} where it stops" in words
    assert f"stops after {group.first.test['mean_steps']:.1f} on average" in words


def test_digits_that_are_not_shown_decide_nothing(make_run: MakeRun) -> None:
    folder = make_run()
    first = json.loads((folder / "evaluation.json").read_text())["test"]["per_step"][0]["nll"]
    rewrite(folder / "evaluation.json", lambda evaluation: evaluation["test"].update(nll=first + 1e-9))
    assert "the steps after the first change little" in refinement_words(group_seeds(read_runs([folder]))[0])


def test_a_card_promises_nothing_that_was_not_measured(make_run: MakeRun) -> None:
    run = read_run(make_run(worse=True))
    config = run.config | {"network": {"encoder": "conv"}, "method": {"name": "ric", "horizon": 4}}
    card = hub_card(config, run.data, "ada/digits", None)
    assert "changes it in up to" in card
    assert "step by step" not in card


FITTED = {
    "halting": {
        **{"halt_threshold": -1.5, "max_steps": 2, "reached": False, "nll": 0.51, "mean_steps": 2.0},
        **{"nll_before": 0.62, "steps_before": 7.5, "best_step": 2, "best_step_nll": 0.51, "n": 135},
    },
    "calibration": {
        **{"temperature": 1.25, "nll_before": 0.51, "nll_after": 0.49, "n": 135, "found": True, "kept": True},
        **{"gain": 0.018, "gain_error": 0.004},
    },
}


def fitted_run(folder: Path) -> Path:
    def change(evaluation: dict[str, object]) -> None:
        raw = {split: evaluation[split] for split in ("train", "val", "test")}
        evaluation |= {"raw": raw, "fitted": FITTED}

    rewrite(folder / "evaluation.json", change)
    return folder


def test_what_validation_data_chose_is_on_the_page(make_run: MakeRun) -> None:
    run = read_run(fitted_run(make_run()))
    assert (run.halt_threshold, run.max_steps) == (-1.5, 2)
    page = page_html(group_seeds([run]))
    assert "It stops after 2 steps; validation data chose that." in page
    assert "the gain still expected: it stops after 2 steps." in page
    assert "changes it in up to 2 steps" in page
    assert (
        "Stops after 2 steps, chosen on 135 validation examples: NLL 0.5100 there in 2.0 steps (V &lt; 0: 0.6200"
        in page
    )
    assert "Temperature 1.250, fitted on 135 validation examples: validation NLL 0.5100 → 0.4900." in page
    assert "RIC, raw" in page
    assert "Raw: as trained, with nothing chosen on validation data." in page


def test_a_rule_that_cannot_be_is_refused(make_run: MakeRun) -> None:
    folder = fitted_run(make_run())
    rewrite(folder / "evaluation.json", lambda evaluation: evaluation["fitted"]["halting"].update(max_steps="two"))
    with pytest.raises(RicnetError, match=r"fitted\.halting\.max_steps that cannot be"):
        read_run(folder)
