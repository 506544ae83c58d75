import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2, chi2_contingency
from torch import Tensor

import ricnet
from refusals import refusal
from ricnet.nets.backbone import Backbone
from ricnet.nets.encoders import EncoderOptions, build_encoder
from ricnet.nets.tabular import (
    MAX_BINS,
    ColumnFeatures,
    association,
    count_groups,
    distinct,
    edges,
    factors,
    quantiles,
)


def used(layer: ColumnFeatures) -> Tensor:
    """The columns of the positions that `fit` has set."""
    return layer.column[layer.slope > 0]


def test_positions_within_bins_by_hand() -> None:
    """Quartiles of 0, 1, 2, 4, 8 are all five: 3 is past the bins 0..1 and 1..2, and in the middle of 2..4."""
    rows, labels = torch.tensor([[0.0], [1.0], [2.0], [4.0], [8.0]]), torch.tensor([0, 1, 0, 1, 0])
    layer = ColumnFeatures(1)
    layer.fit(rows, labels)
    mean = torch.tensor([0.8, 0.6, 0.4, 0.2])  # of the training rows, of which each bin has one edge less above it
    torch.testing.assert_close(layer(tensor(3)[None])[0, :5], torch.cat([tensor(3), tensor(1, 1, 0.5, 0) - mean]))
    torch.testing.assert_close(layer(tensor(-9)[None])[0, :5], torch.cat([tensor(-9), -mean]))
    torch.testing.assert_close(layer(rows)[:, 1:].mean(0), torch.zeros(MAX_BINS))
    assert layer(rows)[:, 5:].count_nonzero() == 0  # unused positions


def tensor(*values: float) -> Tensor:
    return torch.tensor(values).float()


def test_columns_of_two_values_and_constants_have_no_bins() -> None:
    rows = torch.tensor([[0.0, 5.0, 0.0], [1.0, 5.0, 1.0], [1.0, 5.0, 2.0]]).repeat(10, 1)
    layer = ColumnFeatures(3)
    layer.fit(rows, torch.arange(30) % 2)
    assert used(layer).tolist() == [2, 2]
    assert layer(rows).isfinite().all()


def test_positions_have_the_factor_of_their_column() -> None:
    layer = ColumnFeatures(2)
    layer.fit(torch.rand(100, 2, generator=torch.Generator().manual_seed(0)), labels=None)
    before = layer(tensor(0.3, 0.3)[None])
    layer.factor.copy_(tensor(1, 0.5))
    of_second = torch.cat([tensor(0, 1), layer.column]).bool()
    torch.testing.assert_close(layer(tensor(0.3, 0.3)[None]), before * torch.where(of_second, 0.5, 1.0))


def test_edges_too_close_for_single_precision_are_merged() -> None:
    assert distinct(tensor(0, 0, 1e-7, 1, 1 + 1e-7, 2)).tolist() == [0, 1, 2]
    assert quantiles(torch.arange(9.0)[:, None], 5).flatten().tolist() == [0, 2, 4, 6, 8]


def test_edges_by_hand() -> None:
    """Of 93 zeros and 1 to 7, all quartiles but the last are 0: three edges are missing, for which the quartiles of the
    eight distinct values are taken, at places 1.75, 3.5 and 5.25. Nothing is missing in the second column."""
    assert edges(torch.cat([torch.zeros(93), torch.arange(1.0, 8)]), 4).tolist() == [0, 2, 4, 5, 7]
    values = torch.tensor([0.0, 1, 1, 1, 2, 3, 3, 4, 8])
    assert edges(values, 4).tolist() == [0, 1, 2, 3, 8]
    assert edges(values, 5).tolist() == [0, 1, 2, 3, 8]  # the sixth, the median 2 of the distinct values, is there


@pytest.mark.parametrize(("rows", "bins"), [(20, 4), (4_900, 4), (10_000, 10), (70_000, 64)])
def test_more_rows_have_more_bins(rows: int, bins: int) -> None:
    layer = ColumnFeatures(3)
    layer.fit(torch.linspace(-1, 1, rows)[:, None].expand(-1, 3), labels=None)
    assert used(layer).bincount().tolist() == [bins] * 3


@pytest.mark.parametrize(("columns", "bins"), [(1, 4), (128, 4), (129, 3), (256, 2), (257, 0), (5_000, 0)])
def test_a_wide_table_has_fewer_bins_for_each_column(columns: int, bins: int) -> None:
    layer = ColumnFeatures(columns)
    layer.fit(torch.linspace(-1, 1, 20)[:, None].expand(-1, columns), labels=None)
    assert len(used(layer)) == columns * bins
    assert layer.size == columns + (min(512, 64 * columns) if bins else 0)
    assert layer(torch.zeros(2, columns)).shape == (2, layer.size)


def test_only_columns_with_more_than_two_values_share_the_positions() -> None:
    """As one-hot encoded words do not."""
    rows = torch.zeros(20_000, 200)
    rows[:, 7] = torch.linspace(-1, 1, len(rows))
    layer = ColumnFeatures(200)
    layer.fit(rows, labels=None)
    assert used(layer).tolist() == [7] * 20


def test_the_association_is_that_of_scipy() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (200,), generator=generator)
    rows = torch.stack([torch.randn(200, generator=generator) + labels, (labels == 1).float()], 1)
    cuts = torch.tensor([[-0.5, 0.5], [0.5, 0.7]])
    statistic, freedom = association(rows, cuts, labels)
    for column in range(2):
        groups = np.digitize(rows[:, column].numpy(), cuts[:, column].numpy())
        counts = np.array(
            [[((groups == g) & (labels.numpy() == k)).sum() for k in range(3)] for g in np.unique(groups)]
        )
        expected = chi2_contingency(counts, correction=False)
        assert float(statistic[column]) == pytest.approx(expected.statistic)
        assert int(freedom[column]) == expected.dof


def test_groups_leave_rows_of_every_class() -> None:
    assert [count_groups(torch.arange(10).repeat(rows // 10)) for rows in (20, 150, 10_000)] == [2, 3, 8]


def noisy(rows: int, columns: int, informative: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (rows,), generator=generator)
    table = torch.randn(rows, columns, generator=generator)
    table[:, :informative] += labels[:, None] - 0.5
    return table, labels


def test_noise_shrinks_and_informative_columns_do_not() -> None:
    table, labels = noisy(2_000, 200, 5)
    layer = ColumnFeatures(200)
    layer.fit(table, labels)
    assert layer.factor[:5].min() > 0.8
    assert layer.factor[5:].median() < 0.01
    few = ColumnFeatures(10)
    few.fit(table[:, :10], labels)
    assert few.factor.tolist() == [1.0] * 10


def test_factors_by_hand() -> None:
    """20 columns, of which one has two groups that say the class and 19 say nothing: 19/20 have p > .5, twice that is
    limited to 1, so the least factor is (10/20)². Of the first, chi-squared is n = 40 with one degree of freedom."""
    labels = torch.arange(40) % 2
    rows = torch.zeros(40, 20)
    rows[:, 0] = labels
    found = factors(rows, torch.full((1, 20), 0.5), labels)
    threshold = 1 + math.sqrt(2 * math.log(20)) * math.sqrt(2)
    assert found[1:].tolist() == [0.25] * 19
    assert float(found[0]) == pytest.approx(0.25 + 0.75 * (1 - threshold / 40))
    assert chi2.sf(40, 1) < 0.5 <= chi2.sf(0, 1)


def test_columns_that_are_all_informative_keep_their_scale() -> None:
    table, labels = noisy(2_000, 40, 40)
    layer = ColumnFeatures(40)
    layer.fit(table, labels)
    assert layer.factor.min() == 1


def test_the_backbone_fits_standardised_training_rows() -> None:
    table, labels = noisy(500, 3, 3)
    encoder = build_encoder(EncoderOptions("tabular", width=0.1), (3,))
    backbone = Backbone(encoder, (3,))
    backbone.fit_normalization(1_000 + 50 * table, labels)
    alone = ColumnFeatures(3)
    alone.fit((table - table.mean(0)) / table.std(0, correction=0), labels)
    torch.testing.assert_close(encoder[0].lower, alone.lower, atol=1e-3, rtol=0)
    assert len(encoder.stages("block")) == 2


def test_tables_only() -> None:
    with refusal("tabular", "tables", "images"):
        build_encoder(EncoderOptions("tabular"), (3, 8, 8))


def test_a_wide_table_is_learned_from_its_few_columns() -> None:
    """The MLP learns the noise by heart."""
    table, labels = noisy(1_600, 300, 10)
    x, y = table.numpy(), labels.numpy()
    scores = {}
    for name in ("auto", "mlp"):
        model = ricnet.SupervisedClassifier(encoder=name, epochs=8, random_state=0, device="cpu").fit(x[:800], y[:800])
        scores[name] = model.score(x[800:], y[800:])
    assert scores["auto"] > scores["mlp"] + 0.02


def trained(folder: Path) -> tuple[ricnet.Classifier, Tensor]:
    table, labels = noisy(300, 30, 4)
    np.savez(folder / "data.npz", x=table.numpy(), y=labels.numpy())
    return ricnet.train(folder / "data.npz", out=folder / "run", epochs=1, device="cpu"), table


def test_a_run_folder_has_the_same_columns(tmp_path: Path) -> None:
    model, table = trained(tmp_path)
    assert model.config.network.encoder == "tabular"
    again = ricnet.load(tmp_path / "run", device="cpu")
    np.testing.assert_array_equal(again.predict_proba(table), model.predict_proba(table))


def test_an_onnx_file_has_the_same_columns(tmp_path: Path) -> None:
    """The export, which compares answers, in a process of its own: torch cannot trace what checks shapes here."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (ricnet[onnx])")
    trained(tmp_path)
    command = [sys.executable, "-m", "ricnet", "export", str(tmp_path / "run"), "--out", str(tmp_path / "model.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
