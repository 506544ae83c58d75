"""Supervised learning (SL): one pass with cross-entropy, LogitNorm or an evidential loss.

With exits, each stage of the encoder has its own linear head.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from ricnet.core import losses
from ricnet.core.trajectory import Temperature, Trajectory, doubt, first_stop
from ricnet.errors import require, require_finite, setting
from ricnet.methods.inference import InSteps, Pool, Step, Steps
from ricnet.methods.method import Inputs, Labels, Loss, Method, TimeLeft, Weights, accuracy, weighted_mean
from ricnet.nets.backbone import Backbone, Staged, encode


@dataclass(frozen=True)
class Supervised(Method[nn.Module]):
    name: ClassVar[str] = "supervised"
    title: ClassVar[str] = "SL"
    about: ClassVar[str] = "cross-entropy in one pass (SL)"
    colour: ClassVar[str] = "#d55e00"
    one_pass: ClassVar[bool] = True
    search_space: ClassVar[tuple[str, ...]] = ("label_smoothing=0,0.05,0.1",)

    objective: Literal["cross-entropy", "logitnorm", "evidential"] = "cross-entropy"
    """Loss: cross-entropy, logitnorm (cross-entropy of logits of fixed norm, Wei et al. 2022), or evidential (expected
    squared error under a Dirichlet, Sensoy et al. 2018)."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes. Raise it for lower confidence."""
    uniform_mix: float = 0.0
    """m: the belief is (1 − m)·softmax + m/K, in training too, which limits confidence. Raise it for a lower limit;
    0.0099 is the limit of RIC with 10 classes."""
    logitnorm_temperature: float = 0.04
    """τ of logitnorm, which divides logits z by τ‖z‖. Raise it for lower confidence."""
    confidence_threshold: float | None = None
    """With exits, halt at the first belief with at least this confidence, after temperature scaling; None computes the
    whole network. Raise it to exit later."""
    evidence_kl: float = 1.0
    """Weight of the KL penalty on evidence for wrong classes in the evidential loss; constant, unlike the ramp over ten
    epochs of its paper. Raise it for lower confidence."""

    def __post_init__(self) -> None:
        require_finite(self)
        smoothing, mix = self.label_smoothing, self.uniform_mix
        require(0 <= smoothing < 1, "label_smoothing", smoothing, "from 0 to below 1")
        require(0 <= mix < 1, "uniform_mix", mix, "from 0 to below 1")
        temperature = self.logitnorm_temperature
        require(temperature > 0, "logitnorm_temperature", temperature, "above 0")
        sure = self.confidence_threshold
        require(sure is None or 0 <= sure <= 1, "confidence_threshold", sure, "from 0 to 1, or None")
        require(self.evidence_kl >= 0, "evidence_kl", self.evidence_kl, "0 or more")
        if self.objective == "evidential":
            rule = f"0 with {setting('objective', 'evidential')}"
            require(smoothing == 0, "label_smoothing", smoothing, rule)
            require(mix == 0, "uniform_mix", mix, rule)

    @property
    def takes_soft_labels(self) -> bool:
        return self.objective != "evidential"

    @property
    def takes_budget(self) -> bool:
        return True

    def stopping_by(self, threshold: float, max_steps: int) -> "Supervised":
        """Halt once 1 − confidence falls below the threshold; never with a threshold below 0."""
        sure = 1 - threshold
        return replace(self, confidence_threshold=sure if sure <= 1 else None)

    def build(self, backbone: Backbone, classes: int) -> nn.Module:
        if backbone.stages:
            steps = backbone.steps_per_exit
            require(steps == 1, "steps_per_exit", steps, f"1 with the method {self.name}")
            return ExitHeads(backbone, classes)
        return nn.Sequential(backbone, nn.Linear(backbone.embedding_size, classes))

    def loss(
        self, model: nn.Module, snapshot: nn.Module, inputs: Inputs, labels: Labels, weights: Weights = None
    ) -> Loss:
        """Loss of the logits; with exits the mean over all exits."""
        answers = model(inputs).unbind() if isinstance(model, ExitHeads) else [model(inputs)]
        loss = torch.stack([weighted_mean(self._terms(logits, labels, weights), weights) for logits in answers]).mean()
        logits, classifier = answers[-1], [*model.modules()][-1]
        return loss, {
            "accuracy": accuracy(logits, labels),
            "logit_norm": logits.detach().norm(dim=-1).mean(),
            "classifier_norm": classifier.get_parameter("weight").detach().norm(),
        }

    def _terms(
        self, logits: Float[Tensor, "batch classes"], labels: Labels, weights: Tensor | None
    ) -> Float[Tensor, "*batch"]:
        if self.objective == "evidential":
            return losses.evidential(losses.evidential_alpha(logits), labels, self.evidence_kl)
        reduction = "mean" if weights is None else "none"
        return F.cross_entropy(
            self.log_beliefs(logits), labels, label_smoothing=self.label_smoothing, reduction=reduction
        )

    def log_beliefs(self, logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]:
        """Reported beliefs, which the cross-entropy uses too; the evidential loss uses α."""
        if self.objective == "evidential":
            alpha = losses.evidential_alpha(logits)
            return (alpha / alpha.sum(-1, keepdim=True)).log()
        if self.objective == "logitnorm":
            logits = losses.normalize_logits(logits, self.logitnorm_temperature)
        return losses.mix_uniform(logits.log_softmax(-1), self.uniform_mix)

    @torch.no_grad()
    def refine(
        self,
        model: nn.Module,
        inputs: Inputs,
        max_steps: int | None = None,
        halt: bool = False,
        time_left: TimeLeft | None = None,
    ) -> Trajectory:
        """A trajectory of one step; with exits one step per exit."""
        if isinstance(model, ExitHeads):
            return self.at_exits(model).refine(model, inputs, max_steps, halt, time_left)
        log_beliefs = self.log_beliefs(encode(model, inputs)).unsqueeze(0)
        return Trajectory(log_beliefs, torch.ones_like(log_beliefs[0, :, 0], dtype=torch.int64))

    def at_exits(self, model: "ExitHeads", temperature: Temperature = 1.0) -> "AtExits":
        return AtExits(self, len(model.costs), temperature)


# Exits


@dataclass(frozen=True)
class AtExits(InSteps["ExitHeads"]):
    """Step-by-step inference of SL with exits: an example halts when its confidence reaches the threshold."""

    method: Supervised
    horizon: int
    temperature: Temperature = 1.0
    """Applied before the confidence is compared; reported beliefs are not scaled here."""

    def gather(self, model: "ExitHeads", context: Float[Tensor, "batch read"]) -> Pool:
        """Pool without thoughts, which SL does not have."""
        return Pool(context, context[:, :0], context.new_full((len(context), model.classes), 1 / model.classes))

    def run_stage(
        self, model: "ExitHeads", stage: int, seen: Num[Tensor, "batch ..."]
    ) -> tuple[Tensor, Float[Tensor, "batch read"]]:
        """Output of the stage, and a context of the log-belief with 1 − confidence in the last column."""
        seen, logits = model.run_stage(stage, seen)
        log_belief = self.method.log_beliefs(logits)
        temperature = self.temperature[stage] if isinstance(self.temperature, tuple) else self.temperature
        doubts = doubt((log_belief / temperature).log_softmax(-1))
        return seen, torch.cat([log_belief, doubts.unsqueeze(1)], 1)

    def step(self, model: "ExitHeads", pool: Pool, first: bool) -> Step:
        log_belief, value = pool.context[:, :-1], pool.context[:, -1]
        step = Step(pool._replace(belief=log_belief.exp()), log_belief, value, torch.ones_like(value, dtype=torch.bool))
        return step._replace(active=self.goes_on(step))

    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        sure = self.method.confidence_threshold
        return torch.ones_like(step.active) if sure is None else step.value > 1 - sure

    def trajectory(self, steps: Steps) -> Trajectory:
        """Uses the current threshold; the steps may have been made under another one."""
        return Trajectory(steps.output, first_stop(self.goes_on(steps)))


class ExitHeads(Staged):
    """A linear head after each stage of the encoder."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__(backbone, classes)
        self.heads = nn.ModuleList(nn.Linear(features, classes) for features in backbone.feature_sizes)
        self.costs = backbone.count_costs(self.read, lambda answer: None)

    def forward(self, inputs: Inputs) -> Float[Tensor, "exits batch classes"]:
        answers = [
            self.read(stage, features) for stage, (_, features) in enumerate(self.backbone.stage_outputs(inputs))
        ]
        return torch.stack(answers)

    def read(self, stage: int, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch classes"]:
        return self.heads[stage](features)  # type: ignore[no-any-return]
