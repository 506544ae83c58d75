"""How much of the compute that early exits save is also saved in time.

    python benchmarks/exits.py [RUN] [--data-dir DIR] [--share 0.5] [--images 256] [--skip pytorch,onnx,server]

RUN is a run with exits that halts by its value; it is measured on its test images. Without one, a narrow ResNet-18 with
an exit after each block is trained on digits of 32 × 32 pixels. The threshold is set so that the mean share of compute
is close to --share. PyTorch, ONNX and the server answer with early exits and with the whole network, in turns. `saved`
is the ratio of images per second; `efficiency` is that times the share: 1 is no overhead. The aim is 0.85 on a CPU and
0.7 on a GPU.

A stage's share of the multiply-adds is not its share of the time. `stages alone` is the efficiency if each stage took
time in proportion to the images that enter it, and everything else none.
"""

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import ricnet
from common import Row, argument_parser, publish, run_or_digits, take_turns
from ricnet.core.trajectory import halting_step
from ricnet.data import Dataset, Split
from ricnet.data import load as load_data
from ricnet.models.classifier import Classifier
from ricnet.models.recorded import Recorder
from server import WARM_UP_SECONDS, Load, Request, press, server

ONE_BY_ONE = 64
TURNS = 9
SERVED_SECONDS, SERVED_TURNS = 5.0, 5
LEARNED = {"encoder": "resnet18", "width": 0.5, "exits": "block", "method": "anytime", "value_coef": 0.5, "epochs": 2}


def large_digits() -> Dataset:
    """Digits enlarged four times, to a size that suits a ResNet."""
    digits = load_data("digits")
    splits = [
        Split(split.inputs.repeat_interleave(4, 2).repeat_interleave(4, 3), split.labels)
        for split in (digits.train, digits.val, digits.test)
    ]
    return Dataset("digits of 32 pixels", *splits, digits.class_names)


def leaving_at(classifier: Classifier, threshold: float) -> Classifier:
    return replace(classifier, method=replace(classifier.method, halt_threshold=threshold))  # type: ignore[call-arg]


def share_of(classifier: Classifier, inputs: Tensor) -> float:
    cost = classifier.refine(inputs).cost
    if cost is None:
        raise SystemExit("this run has no exits; train one with --exits block.")
    return cost.mean().item()


def spending(classifier: Classifier, inputs: Tensor, share: float) -> Classifier:
    """The classifier with the threshold whose mean share of compute is closest to `share`."""
    path = classifier.refine(inputs, halt=False)
    if path.values is None or not path.costs:
        raise SystemExit(
            "this run does not halt by a value; give a run of ric, or of anytime with --value-coef, with exits."
        )
    values, costs = path.values.cpu(), torch.tensor(path.costs)
    thresholds = values[1:].flatten().quantile(torch.linspace(0, 1, 65)).tolist()
    shares = [costs[halting_step(values, threshold) - 1].mean().item() for threshold in thresholds]
    return leaving_at(classifier, min(zip(thresholds, shares, strict=True), key=lambda each: abs(each[1] - share))[0])


def one_by_one(classifier: Classifier, inputs: Tensor) -> None:
    for row in inputs.split(1):
        classifier.refine(row)


@torch.no_grad()
def stages_alone(early: Classifier, inputs: Tensor, device: torch.device) -> float:
    method: Any = early.method
    model: Any = early.model
    record, looks = Recorder(device), dict[str, Callable[[], None]]()
    seen = [method.start(model, inputs).seen]
    for stage in range(len(model.backbone.stages)):
        looks[f"{stage}"] = record(partial(model.run_stage, stage, seen[stage]))
        seen.append(model.run_stage(stage, seen[stage])[0])  # kept in memory, because the recording reads it
    times = torch.tensor([*take_turns(looks, device, TURNS).values()])
    leave = early.refine(inputs).halt_step
    enter = torch.tensor(
        [(leave > stage * model.backbone.steps_per_exit).double().mean() for stage in range(len(times))]
    )
    return share_of(early, inputs) * float(times.sum() / (times * enter).sum())


def in_pytorch(early: Classifier, whole: Classifier, inputs: Tensor, device: torch.device) -> Iterator[Row]:
    few = inputs[:ONE_BY_ONE]
    taken = take_turns(
        {"early": partial(one_by_one, early, few), "whole": partial(one_by_one, whole, few)}, device, TURNS
    )
    yield measured("PyTorch, one by one", share_of(early, few), taken["early"], taken["whole"], len(few))
    taken = take_turns({"early": lambda: early.refine(inputs), "whole": lambda: whole.refine(inputs)}, device, TURNS)
    made = measured(
        f"PyTorch, {len(inputs)} at once", share_of(early, inputs), taken["early"], taken["whole"], len(inputs)
    )
    yield {**made, "stages alone": stages_alone(early, inputs, device)}


def in_onnx(early: Classifier, whole: Classifier, inputs: Tensor, scratch: Path) -> Iterator[Row]:
    import onnxruntime  # may be missing where only PyTorch is timed

    from ricnet.models.onnx import export_onnx

    few = inputs[:ONE_BY_ONE].cpu().numpy()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    sessions = {}
    for name, classifier in (("early", early), ("whole", whole)):
        export_onnx(classifier, scratch / f"{name}.onnx")
        sessions[name] = onnxruntime.InferenceSession(scratch / f"{name}.onnx", options)

    def answer(session: onnxruntime.InferenceSession, size: int) -> float:
        rows = (few[start : start + size] for start in range(0, len(few), size))
        return sum(float(session.run(None, {"input": row})[2].sum()) for row in rows) / len(few)

    for size in (1, len(few)):
        candidates = {name: partial(answer, session, size) for name, session in sessions.items()}
        taken = take_turns(candidates, torch.device("cpu"), TURNS)
        what = "ONNX, one by one" if size == 1 else f"ONNX, {size} at once"
        yield measured(what, answer(sessions["early"], size), taken["early"], taken["whole"], len(few))


def as_request(image: Tensor) -> Request:
    pixels = image.permute(1, 2, 0).cpu().numpy()
    with io.BytesIO() as file:
        Image.fromarray(pixels if len(image) == 3 else pixels[..., 0]).save(file, "png")
        png = file.getvalue()
    head = b'--edge\r\ncontent-disposition: form-data; name="images"; filename="x.png"\r\n\r\n'
    return head + png + b"\r\n--edge--\r\n", {"content-type": "multipart/form-data; boundary=edge"}


def in_a_server(
    early: Classifier, whole: Classifier, inputs: Tensor, device: torch.device, clients: int, scratch: Path
) -> Iterator[Row]:
    requests = [as_request(image) for image in inputs]
    with ExitStack() as running:
        loads = {}
        for name, classifier in (("early", early), ("whole", whole)):
            classifier.save_pretrained(scratch / name)
            loads[name] = Load(running.enter_context(server(str(scratch / name), str(device))).address)
            press(Load(loads[name].address), requests, clients, WARM_UP_SECONDS)
        for _ in range(SERVED_TURNS):
            for load in loads.values():
                press(load, requests, clients, SERVED_SECONDS)
    share = share_of(early, inputs)
    ends = {name: 1 / load.throughput for name, load in loads.items()}
    models = {name: 1 / load.rate for name, load in loads.items()}
    yield measured(f"server, {clients} clients", share, ends["early"], ends["whole"], 1)
    yield measured("its model alone", share, models["early"], models["whole"], 1)


def measured(what: str, share: float, early: float, whole: float, images: int) -> Row:
    return {
        "what": what,
        "early/s": images / early,
        "whole/s": images / whole,
        "share": share,
        "saved": whole / early,
        "efficiency": whole / early * share,
        "stages alone": None,
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("run", nargs="?", metavar="RUN", help="folder of a run with exits")
    parser.add_argument("--data-dir", type=Path, help="folder of named data sets")
    parser.add_argument("--share", type=float, nargs="+", default=[0.5], help="mean share of compute")
    parser.add_argument("--images", type=int, default=256, help="images per batch")
    parser.add_argument("--clients", type=int, default=16, help="concurrent clients of the server")
    parser.add_argument("--skip", default="", help="any of pytorch, onnx and server, separated by commas")
    options = parser.parse_args()
    device, digits = options.device, large_digits()
    with run_or_digits(options.run, device, data=digits, **LEARNED) as run, tempfile.TemporaryDirectory() as scratch:
        classifier = ricnet.load(run, str(device))
        config, images = classifier.config, digits.test.inputs
        if options.run is not None:
            how = {"resolution": config.resolution, "oversize": config.oversize}
            images = load_data(config.data, data_dir=options.data_dir, **how).test.inputs
        some = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: options.images]
        inputs, whole, rows, notes = images[some].to(device), leaving_at(classifier, -1e9), [], []
        for share in options.share:
            early = spending(classifier, inputs, share)
            if "pytorch" not in options.skip:
                rows += in_pytorch(early.recorded(), whole.recorded(), inputs, device)
            if "onnx" not in options.skip:
                rows += in_onnx(early, whole, inputs, Path(scratch))
            if "server" not in options.skip:
                rows += in_a_server(early, whole, inputs, device, options.clients, Path(scratch))
            leave = early.refine(inputs).halt_step
            exits = ", ".join(f"{int((leave == step + 1).sum())}" for step in range(int(leave.max())))
            notes.append(f"Images that leave at each exit, for a share of {share:g}: {exits}.")
        network = config.network
        notes.insert(0, f"{network.encoder} of width {network.width:g}, exits: {network.exits}.")
        publish("Early exits against the whole network", rows, notes, device, options.json)


if __name__ == "__main__":
    main()
