"""Metrics of a run, recomputed with other libraries or plain Python."""

from pathlib import Path

import numpy as np
from sklearn.metrics import accuracy_score, log_loss


def recompute(folder: Path) -> dict[str, float]:
    """From predictions.npz alone."""
    with np.load(folder / "predictions.npz") as stored:
        log_beliefs, labels, halt = (stored[f"test_{key}"] for key in ("log_beliefs", "labels", "halt_step"))
    beliefs = np.exp(log_beliefs.astype(np.float64))
    beliefs /= beliefs.sum(axis=1, keepdims=True)
    answers, confidence = beliefs.argmax(axis=1), beliefs.max(axis=1)
    ece = 0.0
    for m in range(1, 16):
        inside = [i for i, c in enumerate(confidence) if (m - 1) / 15 < c <= m / 15]
        if inside:
            share = sum(answers[i] == labels[i] for i in inside) / len(inside)
            ece += len(inside) / len(labels) * abs(share - sum(confidence[i] for i in inside) / len(inside))
    return {
        "accuracy": accuracy_score(labels, answers),
        "ece": ece,
        "nll": log_loss(labels, beliefs, labels=range(beliefs.shape[1])),
        "brier": float(((beliefs - np.eye(beliefs.shape[1])[labels]) ** 2).sum() / len(labels)),
        "mean_steps": float(np.mean(halt)),
    }
