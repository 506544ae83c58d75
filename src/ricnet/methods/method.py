"""The contract of a method, all that the trainer, the evaluation and the apps know of it.

A method is a frozen dataclass of its hyper-parameters, so it is at once its own configuration: each field becomes
a flag of the command line and an entry of config.json. Its functions take the network as an argument.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from jaxtyping import Float, Int64, Num
from torch import Tensor, nn

from ricnet.core.objectives import accuracy as accuracy
from ricnet.core.objectives import weighted_mean as weighted_mean
from ricnet.core.trajectory import Trajectory
from ricnet.distributed import Shard
from ricnet.nets.backbone import Backbone

Metrics = dict[str, Float[Tensor, ""]]
Network = TypeVar("Network", bound=nn.Module)
TimeLeft = Callable[[], bool]
"""Whether there is time for one more step."""
Batch = tuple[Tensor, ...]
"""Inputs and labels, and weights where there are any: what `loss` takes. (Parts of a batch may differ in size.)"""


@dataclass(frozen=True)
class Method(ABC, Generic[Network]):
    name: ClassVar[str]
    """What flags and config.json call it."""
    title: ClassVar[str]
    """What tables and legends call it; its name unless it says otherwise."""
    about: ClassVar[str]
    """One line for lists of methods; its title unless it says otherwise."""
    colour: ClassVar[str | None]
    """Its colour in every figure, #rrggbb; None takes one that is left."""
    search_space: ClassVar[tuple[str, ...]] = ()
    """What `ric sweep` searches besides learning rate and decay, as --space takes it."""
    paper_epochs: ClassVar[int] = 300
    """How long the paper trains it."""
    one_pass: ClassVar[bool] = False
    """Whether its trajectory has one step, made by the network alone."""
    compiled: ClassVar[tuple[str, ...]] = ()
    """Its functions that are many small kernels, which training on a GPU compiles into few."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A method with a name of its own takes no title, description or colour over from the one that it extends."""
        super().__init_subclass__(**options)
        if "name" in vars(cls):
            cls.title = vars(cls).get("title", cls.name)
            cls.about = vars(cls).get("about", cls.title)
            cls.colour = vars(cls).get("colour")

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        """What it is called with these settings (`method` in config.json), where some make another system of it."""
        return cls.title

    def without_effect(self, exits: bool) -> dict[str, str]:
        """Settings that change nothing beside the others, each with the reason. A user who gives one is told so."""
        return {}

    @property
    def halts_by_value(self) -> bool:
        """Whether it stops where a learned value falls below `halt_threshold`."""
        return False

    @property
    def takes_budget(self) -> bool:
        """Whether, with exits, a threshold can say where it leaves: on its value, or on its confidence."""
        return self.halts_by_value

    def stopping_by(self, threshold: float, max_steps: int) -> "Method[Network]":
        """The same under the rule that was chosen for it: a threshold on what speaks for another step
        (`Trajectory.continuation`), and the most steps that an answer takes unless told otherwise."""
        return replace(self, halt_threshold=threshold, horizon=max_steps)  # type: ignore[call-arg]  # by value: has both

    @abstractmethod
    def build(self, backbone: Backbone, classes: int) -> Network:
        """The network, untrained."""

    @abstractmethod
    def loss(
        self,
        model: Network,
        snapshot: Network,
        inputs: Num[Tensor, "batch ..."],
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """What to minimise on a minibatch, and what to log of it (means, without gradient).

        `snapshot` is an earlier copy of `model` where `snapshot_period` asks for one, else `model` itself. `weights`
        say how much each example counts, 1 on average over all training data; they are given only where examples
        differ in it.
        """

    def losses(
        self, model: Network, snapshot: Network, parts: Sequence[Batch], shard: Shard | None = None
    ) -> Iterator[tuple[Float[Tensor, ""], Metrics]]:
        """The loss of a minibatch that is learned from in parts, one part after the other.

        A part's gradient may be taken, and its memory freed, before the next is asked for. Weighed by their rows they
        make up the loss of the whole. To be overridden where a part's loss depends on the other parts, or on the rows
        of other processes; `shard` gathers those, None where there are none.
        """
        for part in parts:
            yield self.loss(model, snapshot, *part)

    @abstractmethod
    def refine(
        self,
        model: Network,
        inputs: Num[Tensor, "batch ..."],
        max_steps: int | None = None,
        halt: bool = False,
        time_left: TimeLeft | None = None,
    ) -> Trajectory:
        """The beliefs of a batch of any size, for at most `max_steps` steps (the method's own horizon if None).

        With `halt`, examples that have stopped cost nothing more and keep their last belief; without it every step
        is computed, as figures over steps need. Where an example halts and what it answers is the same either way.
        `time_left` is asked before every step, so that it can time them; the first is made whatever it says. Once it
        says no, the trajectory ends there for all.
        """

    def snapshot_period(self, updates_per_pass: int) -> int | None:
        """How many updates a snapshot lasts, given how many make a pass through the data; None for no snapshots."""
        return None
