"""`ric calibrate`: gives a trained run labelled data for its guarantees."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ricnet.apps.cli import Positional, parse
from ricnet.apps.commands.model import open_model
from ricnet.errors import RicnetError

if TYPE_CHECKING:  # torch is imported after the flags are checked
    from ricnet.data import Split
    from ricnet.models.classifier import Classifier


@dataclass(frozen=True)
class Calibrate:
    """Give a trained run labelled data for its guarantees: prediction sets (--coverage), exits of limited loss
    (--max-loss) and answers of limited error (--max-error). The data must not have been used in training or in any
    choice, and must be drawn like later inputs. It replaces calibration data that the run already has. A coverage of
    0.95 needs at least 19 examples, 0.99 at least 99; a loss or error of at most 0.01 needs at least 299."""

    run: Annotated[str, Positional("RUN")]
    """Folder that ric train wrote."""
    data: Annotated[str, Positional("DATA")]
    """Labelled data with the classes of the run, as for ric evaluate --data. If it has a test split, only that is
    used."""
    data_dir: Path | None = None
    """Folder of named data sets; by default $RICNET_DATA, else the user's cache folder."""
    device: str = "auto"
    """auto, cpu, cuda …"""


def calibrate(arguments: Sequence[str]) -> None:
    options: Calibrate = parse(Calibrate, arguments, "calibrate")
    classifier = open_model(options.run, options.device)
    from ricnet.models import guarantees
    from ricnet.training.console import say

    n = len(guarantees.calibrate(classifier, unseen_rows(classifier, options.data, options.data_dir)))
    say([f"calibrated with {n:,} examples: ric predict {options.run} --coverage 0.95 (at most {n / (n + 1):.4g})"])


def unseen_rows(classifier: "Classifier", data: str, data_dir: Path | None) -> "Split":
    """The labelled test rows of other data than that of the run."""
    from ricnet.apps.commands.evaluate import data_for
    from ricnet.data import whole_path
    from ricnet.io import split_target
    from ricnet.models.run import fingerprint, read_config

    own = split_target(whole_path(data))[0] == split_target(whole_path(classifier.config.data))[0]
    if not own:
        dataset = data_for(classifier, data, data_dir)
        known = {} if classifier.folder is None else read_config(classifier.folder).get("data", {})
        own = fingerprint(dataset) == known.get("fingerprint")
    if own:
        raise RicnetError(
            f"{data} was used to train the run; guarantees need labelled data that was not: give other data, or train "
            "with --calibration-fraction 0.1."
        )
    return dataset.test
