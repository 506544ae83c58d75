"""Flags of the commands that do not train. They are read and checked before torch is imported, which takes seconds."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ricnet.apps.cli import Positional
from ricnet.apps.server.limits import Limits
from ricnet.errors import RicnetError, require
from ricnet.io import PREFIX, is_hub_id, run_config, user_path

MOST_STEPS = 10_000
"""Largest --max-steps; the beliefs of all steps are kept."""
PAIRS = (
    *(("coverage", "max_loss"), ("coverage", "max_error"), ("max_loss", "max_error")),  # one use of calibration data
    *(("max_loss", "halt_threshold"), ("max_loss", "budget"), ("max_loss", "max_steps")),  # two halting rules
    *(("costs", "max_error"), ("costs", "abstain_below"), ("max_error", "abstain_below")),  # two rules to answer by
    *(("tune", "costs"), ("tune", "max_error"), ("tune", "abstain_below")),
    *(("coverage", "max_ms"), ("max_loss", "max_ms"), ("max_error", "max_ms")),  # calibrated without a time limit
)
"""Flags that exclude each other."""


def refuse_no_run(run: str) -> None:
    """Raise if there is no run folder of this name, unless it names a model that comes with ricnet or is on the Hub."""
    if not run.startswith(PREFIX) and not is_hub_id(run):
        run_config(user_path(run))


@dataclass(frozen=True, kw_only=True)
class OfModel:
    """Flags of the commands that use a trained model."""

    run: Annotated[str, Positional("RUN")]
    """Folder that ric train wrote, a model that comes with ricnet (pretrained:NAME), or one on the Hub (user/name)."""

    def __post_init__(self) -> None:
        refuse_no_run(self.run)


@dataclass(frozen=True, kw_only=True)
class Answering(OfModel):
    max_steps: int | None = None
    """Maximum number of steps; by default that of the run's halting rule, or its horizon."""
    halt_threshold: float | None = None
    """Stop when the value falls below this threshold, instead of by the rule that the run chose (0 is the paper's).
    Raise it to stop earlier."""
    budget: float | None = None
    """For a model with exits: stop so that the mean share of compute is at most this, by the threshold that was fitted
    to it on validation data. Raise it for better answers, up to 1, the whole network."""
    readout: Literal["mean", "mu", "implied"] | None = None
    """Reported belief: mean (the paper), mu (softmax), implied (what the Dirichlet's optimum implies)."""

    @property
    def rule(self) -> tuple[float | None, float | None, str | None]:
        """Budget, threshold and readout."""
        return self.budget, self.halt_threshold, self.readout

    def __post_init__(self) -> None:
        steps = self.max_steps
        require(steps is None or 1 <= steps <= MOST_STEPS, "max_steps", steps, f"from 1 to {MOST_STEPS:,}")
        if self.budget is not None and self.halt_threshold is not None:
            raise RicnetError("--halt-threshold and --budget are two halting rules; remove one.")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class Deciding(Answering):
    coverage: float | None = None
    """Answer with a set of classes that contains the true one with this probability, on average over inputs drawn like
    the calibration data (see ric calibrate). Raise it for larger, safer sets."""
    per_class: bool = False
    """With --coverage: let it hold within each class. A class with few calibration examples is then in every set."""
    set_score: Literal["lac", "aps", "raps"] = "lac"
    """With --coverage: lac (smallest sets), aps (sizes adapt to the input), or raps (aps with fewer unlikely classes;
    its parameters come from validation data)."""
    costs: Path | None = None
    """CSV file of costs: the first line names the answers, the first cell of each other line a true class; a column
    abstain is the cost of no answer. The answer of least expected cost is given."""
    tune: Literal["balanced_accuracy", "macro_f1"] | None = None
    """Weigh the probabilities of the classes so that this score of the answers rises. The weights come from the
    validation data of the run and are used only if a cross-fitted gain is shown."""
    max_loss: float | None = None
    """Stop early so that at most this share of answers gets worse than with all steps, with --probability over draws of
    the calibration data. Raise it to save more compute."""
    loss: Literal["lost", "changed", "brier"] = "lost"
    """With --max-loss: lost (right with all steps, wrong early), changed (another answer), brier (increase of the Brier
    score)."""
    max_error: float | None = None
    """Answer "unsure" at low confidence so that at most this share of the other answers is wrong, with --probability
    over draws of the calibration data. Raise it for more answers."""
    probability: float = 0.95
    """Probability that --max-loss or --max-error holds. Raise it for stricter limits."""

    def __post_init__(self) -> None:
        for name in ("coverage", "max_loss", "max_error", "probability"):
            level = getattr(self, name)
            require(level is None or 0 < level < 1, name, level, "between 0 and 1")
        for first, second in PAIRS:
            if getattr(self, first) is not None and getattr(self, second, None) is not None:
                flags = f"--{first.replace('_', '-')} and --{second.replace('_', '-')}"
                raise RicnetError(f"{flags} cannot be combined; remove one.")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class Predict(Deciding):
    """Classify image files, folders of images, rows of tables (.csv, .tsv, .jsonl, .parquet) or of .npz files (array
    x), sentences in quotes or .txt files. Each input is refined until the model expects no further gain. Without an
    INPUT, the examples of the run are classified. A file that cannot be read is named and left out; the exit status is
    then 1 if it is an INPUT, 0 if it is in a folder or pattern, and 2 if nothing can be read. A table is read as a
    whole or left out: in a column of numbers or dates, texts that the training table had there count as missing; any
    other text, or a number too large, is an error."""

    inputs: Annotated[tuple[str, ...], Positional("INPUT...")] = ()
    """Image files, folders (searched for images), patterns in quotes ('photos/*.jpg'), tables, .npz files, or - for
    standard input: one image, one text, or CSV rows below a line of column names. For a model of texts also sentences
    in quotes, .txt files and folders of them."""
    max_ms: float | None = None
    """Time limit for each input in milliseconds; at least one step is made. Inputs are then classified one at a
    time."""
    top: int = 1
    """Number of classes to show for each input."""
    abstain_below: float | None = None
    """Answer "unsure" if the confidence is below this probability, and print how many validation examples would have
    been answered (coverage) and how many of the answers were wrong (risk). Raise it for fewer, safer answers."""
    trace: bool = False
    """Show the belief after each step as a bar, and where the model stops; without an INPUT for one example."""
    json: bool = False
    """Print one JSON object per line: input, answer, confidence, steps, top (with --trace also the beliefs of each
    step); for a model with exits also cost, the share of compute; with --coverage set, with --costs expected_cost."""
    csv: bool = False
    """Print a CSV table: input, answer, confidence, steps, with exits cost, with --costs expected_cost, with --coverage
    set (classes separated by |), and with --top K the K classes and their probabilities."""
    device: str = "auto"
    """auto, cpu, cuda …"""

    def __post_init__(self) -> None:
        require(self.max_ms is None or self.max_ms > 0, "max_ms", self.max_ms, "above 0")
        require(self.top >= 1, "top", self.top, "at least 1")
        least = self.abstain_below
        require(least is None or 0 < least <= 1, "abstain_below", least, "above 0 and at most 1")
        if self.csv and (self.json or self.trace):
            raise RicnetError(f"--csv and --{'json' if self.json else 'trace'} are two output formats; remove one.")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class Evaluate(Deciding):
    """Evaluate a trained run on its training, validation and test data, without augmentation, or on other data, and
    show the classes of lowest recall and the commonest confusions. --json has the results of every class."""

    data: str | None = None
    """Other data with the same classes, or some of them: images (in a folder, of any size), texts, arrays of the same
    shape, or a table with the same columns. Without a test split all rows are evaluated together. A copy of the
    training data is recognised only if it is complete and in the same order. By default the data that the run was
    trained on, with the same splits."""
    data_dir: Path | None = None
    """Folder of named data sets; by default $RICNET_DATA, else the user's cache folder."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    json: bool = False
    """Print all results as JSON, in the form of evaluation.json, with precision, recall and answers of each class."""


@dataclass(frozen=True, kw_only=True)
class Calibrate(OfModel):
    """Give a trained run labelled data for its guarantees: prediction sets (--coverage), exits of limited loss
    (--max-loss) and answers of limited error (--max-error). The data must not have been used in training or in any
    choice, and must be drawn like later inputs. It replaces calibration data that the run already has. A coverage of
    0.95 needs at least 19 examples, 0.99 at least 99; a loss or error of at most 0.01 needs at least 299."""

    data: Annotated[str, Positional("DATA")]
    """Labelled data with the classes of the run, as for ric evaluate --data. If it has a test split, only that is
    used."""
    data_dir: Path | None = None
    """Folder of named data sets; by default $RICNET_DATA, else the user's cache folder."""
    device: str = "auto"
    """auto, cpu, cuda …"""


@dataclass(frozen=True, kw_only=True)
class Monitor(Answering):
    """Compare new data with the calibration data of a run (see ric calibrate): the distributions of confidence, of
    steps or exits, and of answers, each with the population stability index and a two-sample test; with --labels also
    accuracy, calibration and coverage of prediction sets with 95 % intervals. Guarantees need new data that is
    exchangeable with the calibration data: a difference makes that doubtful, and none does not prove it."""

    data: Annotated[str, Positional("DATA")]
    """New data: an input of ric predict, or with --labels data as for ric evaluate --data."""
    labels: bool = False
    """The data holds the true classes."""
    coverage: float = 0.95
    """With --labels: coverage of the prediction sets that are measured."""
    data_dir: Path | None = None
    """With --labels: folder of named data sets; by default $RICNET_DATA, else the user's cache folder."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    json: bool = False
    """Print all results as JSON."""

    def __post_init__(self) -> None:
        require(0 < self.coverage < 1, "coverage", self.coverage, "between 0 and 1")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class Export(Answering):
    """Write a trained run as one ONNX file (pip install 'ricnet[onnx]') with normalisation, network and halting rule.
    Its input is `input`, a batch of uint8 images, float features or int32 token ids, as in training; its outputs are
    `probabilities` and `steps`, with exits also `cost`. The file is compared with PyTorch before it is written.
    examples/onnx_consumer.py shows how to use one."""

    out: Path = Path("model.onnx")
    """File to write."""
    overwrite: bool = False
    """Replace the file if it exists."""
    fixed_steps: int | None = None
    """Make this many steps for every input, without a loop, and return `beliefs` after each of them (steps, batch,
    classes), the `steps` after which each input would stop, and RIC's `values`."""


@dataclass(frozen=True, kw_only=True)
class Push(OfModel):
    """Upload a trained model to the Hub, with its settings, results and a model card, and without its data. Others then
    use it by its name: ric predict user/name photo.jpg. Log in first: hf auth login, or $HF_TOKEN."""

    repo: Annotated[str, Positional("USER/NAME")]
    """Repository on the Hub; created if it does not exist."""
    private: bool = False
    """Make the repository private if it does not exist yet."""


@dataclass(frozen=True, kw_only=True)
class Serve(OfModel):
    """Serve a model over HTTP (pip install 'ricnet[serve]'): POST /v1/predict with images or JSON, GET /v1/model, and a
    demo page at /. Requests that arrive together are batched."""

    host: str = "127.0.0.1"
    """Address to listen on. The default admits only this machine; 0.0.0.0 admits everyone who can reach it, without
    password or encryption: then put a web server in front."""
    port: int = 8000
    """Port to listen on; 0 takes any free port."""
    allow_host: tuple[str, ...] = ()
    """Other host names of this server, such as that of a web server in front. Requests for other names than localhost
    and the address listened on are refused, so that no page of another site can read the answers. With --host 0.0.0.0,
    any IP address and this machine's own name are allowed too."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    budget: float | None = None
    """For a model with exits: mean share of compute of the answers (see ric predict), unless a request has a budget of
    its own."""
    costs: Path | None = None
    """CSV file of costs (see ric predict): requests are answered with the class of least expected cost."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Demo:
    """Show in a browser how a classifier refines its belief (pip install 'ricnet[serve]'): the pretrained CIFAR-10
    model, or, if this installation lacks it, a model of scikit-learn's digits, trained first in less than a minute."""

    port: int = 8000
    """Port to listen on; 0 takes any free port."""
    browser: bool = True
    """Open the page in a browser."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""


@dataclass(frozen=True)
class Report:
    """Compare finished runs: a table in the terminal, and a page with reliability diagrams, beliefs over steps, halting
    and training curves. Runs that differ only in their seed are one system, shown by its mean and its interval."""

    runs: Annotated[tuple[Path, ...], Positional("RUN...")]
    """Folders that ric train wrote, files of scripts/archive_results.py, or pretrained:NAME."""
    out: Path = Path("report.html")
    """Page to write; a report that exists is replaced."""
    figures: Path | None = None
    """Folder for every figure as PNG and PDF."""
    markdown: bool = False
    """Print the table as Markdown."""

    def __post_init__(self) -> None:
        for run in self.runs:
            if not user_path(run).is_file():
                refuse_no_run(str(run))


@dataclass(frozen=True)
class Reproduce:
    """Make tables and figures of the paper, numbered as in the paper, with the data of each as CSV. Runs are shared
    between figures and never repeated; an interrupted reproduction continues with the same command."""

    items: Annotated[tuple[str, ...], Positional("ITEM...")] = ()
    """What to make: table1 to table3, fig1 to fig9, peers, ablations, halting, theory, or all; no item lists them."""
    scale: Literal["smoke", "small", "paper"] = "smoke"
    """smoke: digits, minutes on a laptop; small: about an hour on one GPU; paper: the paper's own setting."""
    out: Path | None = None
    """Folder for the results; by default reproduction/SCALE."""
    runs: Path = Path("runs/studies")
    """Folder of runs: existing ones are reused, new ones are written there."""
    from_runs: tuple[Path, ...] = ()
    """Train nothing: show the runs in these folders, with any settings, on the data sets of --scale (run folders,
    or files that scripts/archive_results.py wrote). Missing runs are marked."""
    jobs: int | None = None
    """Runs at once; by default one per CPU core, or one on a GPU."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    data_dir: Path | None = None
    """Folder of named data sets; by default $RICNET_DATA, else the user's cache folder."""


@dataclass(frozen=True)
class Data:
    """List the named data sets, get (download) one, or check its files against their published checksums."""

    action: Annotated[str, Positional("{list,get,check}")] = "list"
    """What to do; by default list."""
    name: Annotated[str | None, Positional("NAME")] = None
    """Name of the data set, for get and check."""
    data_dir: Path | None = None
    """Folder of named data sets; by default $RICNET_DATA, else the user's cache folder."""


OPTIONS: dict[str, Any] = {
    kind.__name__.lower(): kind
    for kind in (Predict, Evaluate, Calibrate, Monitor, Report, Reproduce, Export, Push, Serve, Demo, Data)
}
