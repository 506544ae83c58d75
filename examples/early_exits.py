"""Train a network with early exits on digits: easy digits leave after the first layers. `make demo` runs this.

    python examples/early_exits.py

There is an exit after each of the three layers. V, the value, is the gain that the network expects from the next layer.
The threshold on V is fitted on validation digits, so that on average half of the network is computed. All printed
numbers are measured on test digits. See docs/exits.md.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

import ricnet
from ricnet.data import load as load_data

SHADES = " .:-=+*#%@"


def print_exits(path: ricnet.Trajectory, labels: torch.Tensor) -> None:
    """Share of digits that leave at each exit, their accuracy, and the accuracy of all digits there."""
    print(f"\n{'exit':>4} {'compute':>8} {'leave here':>11} {'of them right':>14} {'right if all left here':>23}")
    right = path.log_beliefs.argmax(-1) == labels
    for exit, cost in enumerate(path.costs):
        here = path.halt_step == exit + 1
        own = f"{right[exit][here].float().mean():.1%}" if here.any() else "–"
        print(f"{exit + 1:>4} {cost:>8.0%} {here.float().mean():>11.1%} {own:>14} {right[exit].float().mean():>23.1%}")


def print_digit(path: ricnet.Trajectory, image: torch.Tensor, row: int, label: int) -> None:
    """The image as characters, and beside it the belief in two classes and V after each exit."""
    beliefs, halt = path.log_beliefs[:, row].exp(), int(path.halt_step[row])
    best = beliefs[halt - 1].topk(2).indices.tolist()
    lines = [f"exit  compute {best[0]:>6} {best[1]:>6} {'V':>8}"]
    for exit in range(1, halt + 1):
        value = f"{path.values[exit, row]:+.3f}" if path.values is not None and exit < path.steps else ""
        shown = " ".join(f"{beliefs[exit - 1, k]:>6.3f}" for k in best)
        lines.append(f"{exit:>4} {path.costs[exit - 1]:>8.0%} {shown} {value:>8}")
    lines[-1] += f"   answer {best[0]}, {'correct' if best[0] == label else f'the label is {label}'}"
    drawn = ["".join(2 * SHADES[int(pixel) * len(SHADES) // 256] for pixel in line) for line in image.tolist()]
    print()
    for number in range(max(len(drawn), len(lines))):
        print(f"  {drawn[number] if number < len(drawn) else '':<18}{lines[number] if number < len(lines) else ''}")


def conclusion(path: ricnet.Trajectory, labels: torch.Tensor) -> list[str]:
    right = path.log_beliefs.argmax(-1) == labels
    stopped = right[path.halt_step - 1, torch.arange(len(labels))].float().mean()
    cost = torch.tensor(path.costs)[path.halt_step - 1]
    by_digit = sorted((float(cost[labels == digit].mean()), digit) for digit in labels.unique().tolist())
    order = ", ".join(f"{digit} {share:.0%}" for share, digit in by_digit)
    return [
        f"Accuracy {stopped:.1%} with {cost.mean():.0%} of compute, {right[-1].float().mean():.1%} with all of it.",
        f"Mean share of compute by digit: {order}.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--budget", type=float, default=0.5, help="mean share of compute")
    args = parser.parse_args()
    data, start = load_data("digits"), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        # select="last": all 135 validation digits are right, so that they cannot select an epoch
        model = ricnet.train(
            data, exits="block", epochs=args.epochs, select="last", budget=args.budget, out=Path(folder) / "run"
        )
    print(
        f"Trained on {len(data.train):,} digits in {time.perf_counter() - start:.0f} s. Test digits leave once V <",
        end=" ",
    )
    print(f"{model.method.halt_threshold:g}, the threshold for a budget of {args.budget:.0%}:")
    test = data.test
    path = model.refine(test.inputs, halt=False)  # the answers of all exits
    print_exits(path, test.labels)
    first_belief = path.log_beliefs[0].amax(-1).exp()
    easiest, hardest = first_belief - path.halt_step, path.halt_step - first_belief
    for row in dict.fromkeys((int(easiest.argmax()), int(hardest.argmax()))):
        print_digit(path, test.inputs[row, 0], row, int(test.labels[row]))
    print("\n" + "\n".join(conclusion(path, test.labels)))


if __name__ == "__main__":
    main()
