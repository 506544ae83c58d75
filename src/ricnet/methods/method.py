"""`Method`, the interface between a method and the trainer, the evaluation and the apps.

A method is a frozen dataclass of its hyper-parameters. Each field is a flag of the CLI and an entry of config.json. Its
functions take the network as an argument.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from jaxtyping import Float, Num
from torch import Tensor, nn

from ricnet.core.mdp import Labels as Labels
from ricnet.core.mdp import accuracy as accuracy
from ricnet.core.mdp import weighted_mean as weighted_mean
from ricnet.core.trajectory import Trajectory
from ricnet.distributed import Shard
from ricnet.nets.backbone import Backbone

Inputs = Num[Tensor, "batch ..."]
Weights = Float[Tensor, "batch"] | None
"""Weights of the examples, 1 on average over the training data; None if all are equal."""
Metrics = dict[str, Float[Tensor, ""]]
Loss = tuple[Float[Tensor, ""], Metrics]
"""Loss of a minibatch, and metrics to log (means, without gradient)."""
Network = TypeVar("Network", bound=nn.Module)
TimeLeft = Callable[[], bool]
"""Whether there is time for one more step."""
Batch = tuple[Tensor, ...]
"""Arguments of `loss`: inputs, labels, and weights if examples have them. Parts of a batch may differ in size."""


@dataclass(frozen=True)
class Method(ABC, Generic[Network]):
    name: ClassVar[str]
    """Name in flags and config.json."""
    title: ClassVar[str]
    """Name in tables and legends; defaults to `name`."""
    about: ClassVar[str]
    """Description for lists of methods, one line; defaults to `title`."""
    colour: ClassVar[str | None]
    """Colour in figures, #rrggbb; None for the next unused one."""
    search_space: ClassVar[tuple[str, ...]] = ()
    """Settings that `ric sweep` searches besides learning rate and weight decay, in the form of --space."""
    paper_epochs: ClassVar[int] = 300
    """Number of epochs in the paper."""
    one_pass: ClassVar[bool] = False
    """Whether the trajectory has a single step, the output of the network."""
    compiled: ClassVar[tuple[str, ...]] = ()
    """Names of functions that training on a GPU compiles with torch.compile."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass with its own name does not inherit title, description and colour."""
        super().__init_subclass__(**options)
        if "name" in vars(cls):
            cls.title = vars(cls).get("title", cls.name)
            cls.about = vars(cls).get("about", cls.title)
            cls.colour = vars(cls).get("colour")

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        """Title for these settings (the `method` entry of config.json), some of which change the title."""
        return cls.title

    def without_effect(self, exits: bool) -> dict[str, str]:
        """Settings that have no effect given the others, with the reason; users who set one get a note."""
        return {}

    @property
    def takes_soft_labels(self) -> bool:
        """Whether `loss` reads a distribution over classes for each example, as mixup makes them."""
        return True

    @property
    def halts_by_value(self) -> bool:
        """Whether it halts when a learned value falls below `halt_threshold`."""
        return False

    @property
    def takes_budget(self) -> bool:
        """Whether, with exits, it halts by a threshold on its value or confidence, which a budget can set."""
        return self.halts_by_value

    def stopping_by(self, threshold: float, max_steps: int) -> "Method[Network]":
        """A copy that halts when `Trajectory.continuation` falls below the threshold, after `max_steps` steps at the
        latest."""
        return replace(self, halt_threshold=threshold, horizon=max_steps)  # type: ignore[call-arg]  # if halts_by_value

    @abstractmethod
    def build(self, backbone: Backbone, classes: int) -> Network:
        """The untrained network."""

    @abstractmethod
    def loss(self, model: Network, snapshot: Network, inputs: Inputs, labels: Labels, weights: Weights = None) -> Loss:
        """Loss of a minibatch. `snapshot` is an earlier copy of `model` if `snapshot_period` is not None, else `model`
        itself."""

    def losses(
        self, model: Network, snapshot: Network, parts: Sequence[Batch], shard: Shard | None = None
    ) -> Iterator[Loss]:
        """Loss and metrics of each part of a minibatch, for gradient accumulation.

        The caller takes the gradient of a part before it asks for the next. The mean of the losses, weighted by the
        number of rows, is the loss of the minibatch. Override it if the loss of a part depends on other parts or on
        rows of other processes, which `shard` gathers; it is None for a single process.
        """
        for part in parts:
            yield self.loss(model, snapshot, *part)

    @abstractmethod
    def refine(
        self,
        model: Network,
        inputs: Inputs,
        max_steps: int | None = None,
        halt: bool = False,
        time_left: TimeLeft | None = None,
    ) -> Trajectory:
        """Beliefs of a batch of any size, for at most `max_steps` steps (the method's horizon if None).

        With `halt`, halted examples are not computed further and keep their last belief; without it all steps are
        computed for all examples. Halting steps and answers are the same in both cases. `time_left` is called before
        each step. The first step is always made; once `time_left` returns False, the trajectory ends for all examples.
        """

    def snapshot_period(self, updates_per_pass: int) -> int | None:
        """Number of updates per snapshot, given the number of updates per pass; None for no snapshots."""
        return None
