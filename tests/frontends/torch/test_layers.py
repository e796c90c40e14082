"""Layers and losses beside torch's own run, with what they keep from step to step."""

import pytest

from pstranspile.frontends.torch.training import trace
from pstranspile.ir.diagnostics import DiagnosticError
from tests.frontends.torch.beside import ROWS, assert_part_alike, trained

torch = pytest.importorskip("torch", reason="torch is not installed")
functional = torch.nn.functional
nn = torch.nn


class Loss(nn.Module):
    reads = ("x", "target", "classes", "flags")

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(6, 5), function

    def forward(self, x, target, classes, flags):
        return self.function(self.linear(x), target, classes, flags)


def _weights(made):
    return torch.tensor([1.0, 2, 3, 4, 5], dtype=made.dtype)


LOSSES = {
    "bce": lambda a, y, c, f: functional.binary_cross_entropy(a[:, 0].sigmoid(), f),
    "bce_logits": lambda a, y, c, f: functional.binary_cross_entropy_with_logits(a[:, 0], f),
    "bce_positive": lambda a, y, c, f: functional.binary_cross_entropy_with_logits(
        a[:, 0], f, weight=f + 1, pos_weight=torch.tensor(2.0, dtype=a.dtype)
    ),
    "cross_entropy": lambda a, y, c, f: functional.cross_entropy(a, c),
    "cross_entropy_ignore": lambda a, y, c, f: functional.cross_entropy(a, c, ignore_index=2),
    "cross_entropy_ignore_weight": lambda a, y, c, f: functional.cross_entropy(
        a, torch.where(c == 1, -100, c), weight=_weights(a), label_smoothing=0.1
    ),
    "cross_entropy_none": lambda a, y, c, f: (functional.cross_entropy(a, c, reduction="none") * f).mean(),
    "cross_entropy_smooth": lambda a, y, c, f: functional.cross_entropy(a, c, label_smoothing=0.1),
    "cross_entropy_soft": lambda a, y, c, f: functional.cross_entropy(a, y.softmax(1), weight=_weights(a)),
    "cross_entropy_sum": lambda a, y, c, f: functional.cross_entropy(a, c, reduction="sum") * 0.1,
    "huber": lambda a, y, c, f: functional.huber_loss(a, y, delta=0.7),
    "in_batch": lambda a, y, c, f: functional.cross_entropy(a @ y.T / 3, torch.arange(a.shape[0])),
    "kl": lambda a, y, c, f: functional.kl_div(a.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "l1": lambda a, y, c, f: functional.l1_loss(a, y),
    "margin": lambda a, y, c, f: functional.margin_ranking_loss(a, y, torch.ones_like(a), margin=0.1),
    "masked": lambda a, y, c, f: ((a[:, 0] - y[:, 0]) ** 2 * f).sum() / (f.sum() + 1),
    "mse": lambda a, y, c, f: functional.mse_loss(a, y),
    "nll": lambda a, y, c, f: functional.nll_loss(functional.log_softmax(a, 1), c),
    "smooth_l1": lambda a, y, c, f: functional.smooth_l1_loss(a, y, beta=0.5),
    "triplet": lambda a, y, c, f: functional.triplet_margin_loss(a, y, y.flip(0)),
}


class Alignment(nn.Module):
    reads = ("words", "labels", "steps", "sizes")

    def __init__(self, **options):
        super().__init__()
        self.scores, self.options = nn.Linear(5, 7), options

    def forward(self, words, labels, steps, sizes):
        scores = self.scores(words).log_softmax(2).transpose(0, 1)
        return functional.ctc_loss(scores, labels, steps, sizes, **self.options).mean()


class Listed(Alignment):
    """The labels of all rows are one list."""

    def forward(self, words, labels, steps, sizes):
        listed = labels.masked_select(torch.arange(labels.shape[1])[None, :] < sizes[:, None])
        return super().forward(words, listed, steps, sizes)


ALIGNMENTS = {
    "listed": Listed,
    "listed_each": lambda: Listed(reduction="none", zero_infinity=True),
    "mean": Alignment,
    "sum": lambda: Alignment(reduction="sum"),
    "each": lambda: Alignment(reduction="none", zero_infinity=True),
}


def alignments():
    def batch():
        drawn = {"words": torch.randn(ROWS, 9, 5), "labels": torch.randint(1, 7, (ROWS, 4))}
        return drawn | {"steps": torch.randint(7, 10, (ROWS,)), "sizes": torch.randint(1, 5, (ROWS,))}

    return {name: make() for name, make in ALIGNMENTS.items()}, batch


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_label_sequences_beside_torch(name):
    assert_part_alike(alignments, name)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda s, y, n, k: functional.ctc_loss(s * 2, y, n, k), "its scores are no log_softmax"),
    ],
)
def test_an_alignment_that_is_not_translated_is_refused_at_its_line(loss, says):
    model = nn.Linear(5, 7)
    given = torch.randn(4, 9, 5), torch.randint(1, 7, (4, 4)), torch.full((4,), 9), torch.full((4,), 1)
    with pytest.raises(DiagnosticError, match=rf"test_layers\.py:\d+:\d+: error\[torch-op\]: aten._ctc_loss.*{says}"):
        trace(
            model,
            given,
            loss=lambda m, x, *rest: loss(m(x).log_softmax(2).transpose(0, 1), *rest).sum(),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        )


def losses():
    def batch():
        drawn = {"x": torch.randn(ROWS, 6), "target": torch.randn(ROWS, 5)}
        return drawn | {"classes": torch.randint(0, 5, (ROWS,)), "flags": torch.randint(0, 2, (ROWS,)).float()}

    return {name: Loss(function) for name, function in LOSSES.items()}, batch


@pytest.mark.parametrize("name", LOSSES)
def test_loss_beside_torch(name):
    assert_part_alike(losses, name)


class Images(nn.Module):
    reads = ("image",)

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *layers)

    def forward(self, image):
        made = self.layers(image)
        return (made * torch.arange(made.shape[-1], dtype=made.dtype)).mean()


class Line(nn.Module):
    reads = ("image",)

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, image):
        return (self.layers(image[:, :, 0]) ** 2).mean()


class Volumes(nn.Module):
    reads = ("image",)

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv3d(1, 2, 1), *layers)

    def forward(self, image):
        made = self.layers((image.unsqueeze(1) * 2).round())
        return (made * torch.arange(made.shape[-2], dtype=made.dtype)[:, None]).mean()


class Single(nn.Module):
    """Layers of an image that is in no batch, and of a batch's rows as its channels."""

    reads = ("image",)

    def __init__(self):
        super().__init__()
        self.first, self.back = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1)
        self.line = nn.Conv1d(3, 2, 3)

    def forward(self, image):
        one = functional.max_pool2d(self.back(self.first(image[0])), 3, 2, ceil_mode=True)
        rows = functional.avg_pool1d(functional.max_pool1d(image.flatten(1), 3), 2)
        return one.square().mean() + (rows[0] * self.line(image[1, :, 0]).sum()).mean()


class Unpooled(nn.Module):
    """The largest elements of overlapping windows, changed and put back where they were."""

    def forward(self, image):
        found, places = functional.max_pool2d(image, 3, 2, padding=1, return_indices=True)
        changed = found * torch.arange(found.shape[-1], dtype=found.dtype)
        lines, kept = functional.max_pool1d(image[:, :, 0], 2, return_indices=True)
        volumes, held = functional.max_pool3d(image.unsqueeze(1), 2, return_indices=True)
        made = functional.max_unpool2d(changed, places, 3, 2, padding=1, output_size=image.shape[-2:])
        made = made + functional.max_unpool1d(lines.sin(), kept, 2)[:, :, None]
        return made + functional.max_unpool3d(volumes.sin(), held, 2).squeeze(1)


class Smoothed(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = mode

    def forward(self, image):
        small = functional.interpolate(image, scale_factor=0.6, mode=self.mode, antialias=True)
        return functional.interpolate(small, size=(7, 3), mode=self.mode, antialias=True, align_corners=True)


IMAGES = {
    "adaptive": lambda: Images(nn.AdaptiveAvgPool2d(3), nn.AdaptiveMaxPool2d(2)),
    "average": lambda: Images(nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)),
    "batch_norm": lambda: Images(nn.BatchNorm2d(4), nn.ReLU()),
    "bicubic": lambda: Images(nn.Upsample((11, 5), mode="bicubic")),
    "bilinear": lambda: Images(nn.Upsample(scale_factor=2, mode="bilinear")),
    "bilinear_aligned": lambda: Images(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)),
    "bicubic_by_scale": lambda: Images(nn.Upsample(scale_factor=(1.7, 0.6), mode="bicubic")),
    "bilinear_by_scale": lambda: Images(nn.Upsample(scale_factor=1.3, mode="bilinear")),
    "bilinear_line": lambda: Line(nn.Upsample(scale_factor=1.3, mode="linear"), nn.Conv1d(3, 2, 2)),
    "ceil": lambda: Images(nn.MaxPool2d(3, 2, ceil_mode=True)),
    "dilated": lambda: Images(nn.Conv2d(4, 4, 3, dilation=2, groups=2), nn.MaxPool2d(2)),
    "group_norm": lambda: Images(nn.GroupNorm(2, 4)),
    "instance_norm_evaluated": lambda: Images(nn.InstanceNorm2d(4, track_running_stats=True).eval()),
    "instance_norm_kept": lambda: Images(nn.InstanceNorm2d(4, affine=True, track_running_stats=True, momentum=0.3)),
    "instance_norm_not_kept": lambda: Images(nn.InstanceNorm2d(4, track_running_stats=True, momentum=None)),
    "instance_norm": lambda: Images(nn.InstanceNorm2d(4, affine=True)),
    "largest_of_parts": lambda: Volumes(nn.AdaptiveMaxPool3d((2, 3, 1)), nn.AdaptiveMaxPool3d((1, 2, None))),
    "line": lambda: Line(
        nn.Conv1d(3, 4, 3, padding="same"), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(4, 2, 2, padding="same")
    ),
    "nearest_by_scale": lambda: Images(nn.Upsample(scale_factor=1.3), nn.Upsample(scale_factor=(0.7, 2.6))),
    "nearest": lambda: Images(nn.Upsample(scale_factor=2)),
    "prelu": lambda: Images(nn.PReLU(4)),
    "reflected": lambda: Images(nn.ReflectionPad2d(2), nn.ReplicationPad2d((1, 0, 2, 0))),
    "single": Single,
    "smoothed_bicubic": lambda: Images(Smoothed("bicubic")),
    "smoothed_bilinear": lambda: Images(Smoothed("bilinear")),
    "unpooled": lambda: Images(Unpooled()),
    "transposed": lambda: Images(nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1)),
}


def images():
    return {name: make() for name, make in IMAGES.items()}, lambda: {"image": torch.randn(ROWS, 3, 8, 8)}


@pytest.mark.parametrize("name", IMAGES)
def test_image_layer_beside_torch(name):
    assert_part_alike(images, name)


def test_images_are_resized_by_a_scale_in_single_precision():
    layers = Images(nn.Upsample(scale_factor=1.3, mode="bilinear"), nn.Upsample(scale_factor=(0.7, 2.6)))
    made = trained(layers, lambda: (torch.randn(ROWS, 3, 8, 8),), double=False)
    assert made.apart() < 1e-5
    assert made.losses_apart() < 1e-5


class Rows(nn.Module):
    reads = ("x",)

    def __init__(self, *layers):
        super().__init__()
        self.layers, self.scale = nn.Sequential(nn.Linear(6, 6), *layers), nn.Linear(6, 1)

    def forward(self, x):
        return self.scale(self.layers(x)).pow(2).mean()


class Recurrent(nn.Module):
    reads = ("steps",)

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, steps):
        outputs, last = self.layer(steps if self.layer.batch_first else steps.transpose(0, 1))
        states = last if isinstance(last, tuple) else (last,)
        return (outputs**2).mean() + sum((state**2).mean() for state in states)


class Attention(nn.Module):
    reads = ("steps",)

    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.layer = (
            nn.Linear(8, 16),
            nn.Linear(8, 8),
            nn.MultiheadAttention(8, 2, batch_first=True),
        )

    def forward(self, steps):
        made, _ = self.layer(steps, steps, steps, key_padding_mask=steps[:, :, 0] > 1.5)
        query = self.queries(made).unflatten(2, (4, 4)).transpose(1, 2)
        key = self.keys(made).unflatten(2, (2, 4)).transpose(1, 2)
        return (functional.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True) ** 2).mean()


class Encoder(nn.Module):
    reads = ("steps",)

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, steps):
        mask = nn.Transformer.generate_square_subsequent_mask(4).to(steps.dtype)
        return (self.layers(steps, mask=mask, is_causal=True) ** 2 * torch.arange(8, dtype=steps.dtype)).mean()


class Translation(nn.Module):
    """A transformer whose masks are causal, which nothing says but they themselves."""

    reads = ("steps",)

    def __init__(self):
        super().__init__()
        self.layers = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def forward(self, steps):
        mask = nn.Transformer.generate_square_subsequent_mask(4).to(steps.dtype)
        made = self.layers(steps, steps.flip(1), src_mask=mask, tgt_mask=mask != 0, memory_mask=mask)
        return (made**2 * torch.arange(8, dtype=steps.dtype)).mean()


SEQUENCES = {
    "attention": Attention,
    "batch_norm": lambda: Rows(nn.BatchNorm1d(6)),
    "batch_norm_cumulative": lambda: Rows(nn.BatchNorm1d(6, momentum=None)),
    "batch_norm_plain": lambda: Rows(nn.BatchNorm1d(6, affine=False)),
    "batch_norm_plain_cumulative": lambda: Rows(nn.BatchNorm1d(6, affine=False, momentum=None)),
    "batch_norm_untracked": lambda: Rows(nn.BatchNorm1d(6, track_running_stats=False)),
    "batch_norm_evaluated": lambda: Rows(nn.BatchNorm1d(6).eval()),
    "encoder": Encoder,
    "gru": lambda: Recurrent(nn.GRU(8, 5)),
    "gru_deep": lambda: Recurrent(nn.GRU(8, 5, 2, batch_first=True, bidirectional=True, bias=False)),
    "layer_norm": lambda: Rows(nn.LayerNorm(6)),
    "lstm": lambda: Recurrent(nn.LSTM(8, 5, batch_first=True)),
    "lstm_projected": lambda: Recurrent(nn.LSTM(8, 5, 2, batch_first=True, proj_size=3, bidirectional=True)),
    "lstm_projected_plain": lambda: Recurrent(nn.LSTM(8, 5, proj_size=4, bias=False)),
    "lstm_deep": lambda: Recurrent(nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True)),
    "rms_norm": lambda: Rows(nn.RMSNorm(6)),
    "rnn": lambda: Recurrent(nn.RNN(8, 5, batch_first=True, nonlinearity="relu")),
    "translation": Translation,
}


def sequences():
    parts = {name: make() for name, make in SEQUENCES.items()}
    return parts, lambda: {"x": torch.randn(ROWS, 6), "steps": torch.randn(ROWS, 4, 8)}


@pytest.mark.parametrize("name", SEQUENCES)
def test_layer_beside_torch(name):
    assert_part_alike(sequences, name)


def test_a_recurrent_layer_stays_one_recurrence():
    made = trained(Recurrent(nn.LSTM(8, 5, batch_first=True)), lambda: (torch.randn(ROWS, 7, 8),), count=1)
    types = [op.type for op in made.training.module["main"].main_block.ops]
    assert types.count("recurrent") == 1
    assert types.count("sigmoid") == 0


class Looked(nn.Module):
    reads = ("ids",)

    def __init__(self, table, *, weighted=False):
        super().__init__()
        self.table, self.out, self.weighted = table, nn.Linear(6, 1), weighted

    def forward(self, ids):
        weights = (ids % 3).to(self.out.weight.dtype) if self.weighted else None
        made = self.table(ids, per_sample_weights=weights) if self.weighted else self.table(ids)
        return self.out(made).pow(2).mean()


class Offsets(nn.Module):
    reads = ("flat", "offsets")

    def __init__(self, *, weighted=False, **options):
        super().__init__()
        self.table, self.weighted = nn.EmbeddingBag(20, 6, **options), weighted

    def forward(self, flat, offsets):
        weights = (flat % 3).to(self.table.weight.dtype) if self.weighted else None
        return self.table(flat, offsets, per_sample_weights=weights).pow(2).mean()


class PaddedFromTheEnd(nn.Module):
    """Bags, in rows and at offsets, whose padding is counted from the end of the table."""

    reads = ("ids", "flat", "offsets")

    def __init__(self, mode, sparse=False):
        super().__init__()
        self.table, self.options = nn.Parameter(torch.randn(20, 6)), {"mode": mode, "sparse": sparse}

    def forward(self, ids, flat, offsets):
        padded = {"padding_idx": -18, **self.options}
        in_rows = functional.embedding_bag(ids % 4, self.table, **padded)
        at_offsets = functional.embedding_bag(flat % 4, self.table, offsets, **padded)
        return in_rows.pow(2).mean() + at_offsets.pow(2).mean()


class Tied(nn.Module):
    reads = ("ids",)

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 6, padding_idx=0)

    def forward(self, ids):
        return (self.table(ids).mean(1) @ self.table.weight.T).pow(2).mean()


def _kept_row():
    table = nn.Embedding(20, 6, padding_idx=1)
    nn.init.normal_(table.weight)
    return table


TABLES = {
    "bag_max": lambda: Looked(nn.EmbeddingBag(20, 6, mode="max")),
    "bag_max_padded": lambda: Looked(nn.EmbeddingBag(20, 6, mode="max", padding_idx=1)),
    "bag_mean": lambda: Looked(nn.EmbeddingBag(20, 6, mode="mean", sparse=True)),
    "bag_mean_padded": lambda: Looked(nn.EmbeddingBag(20, 6, mode="mean", padding_idx=1)),
    "bag_sum_padded": lambda: Looked(nn.EmbeddingBag(20, 6, mode="sum", padding_idx=1, sparse=True)),
    "bag_weighted": lambda: Looked(nn.EmbeddingBag(20, 6, mode="sum"), weighted=True),
    "embedding": lambda: Looked(nn.Embedding(20, 6)),
    "embedding_padded": lambda: Looked(nn.Embedding(20, 6, padding_idx=0)),
    "embedding_padded_kept": lambda: Looked(_kept_row()),
    "embedding_sparse": lambda: Looked(nn.Embedding(20, 6, sparse=True, padding_idx=0)),
    "offsets_last": lambda: Offsets(mode="sum", include_last_offset=True),
    "offsets_max": lambda: Offsets(mode="max"),
    "offsets_max_padded": lambda: Offsets(mode="max", padding_idx=2),
    "offsets_mean": lambda: Offsets(mode="mean", sparse=True),
    "offsets_mean_padded": lambda: Offsets(mode="mean", padding_idx=2),
    "offsets_weighted": lambda: Offsets(mode="sum", weighted=True),
    "padded_from_the_end_max": lambda: PaddedFromTheEnd("max"),
    "padded_from_the_end_mean": lambda: PaddedFromTheEnd("mean"),
    "padded_from_the_end_sum": lambda: PaddedFromTheEnd("sum", sparse=True),
    "tied": Tied,
}


def tables():
    def batch():
        offsets = torch.tensor([0, 3, 3, 7, 11, 15, 16])
        return {"ids": torch.randint(0, 20, (ROWS, 4)), "flat": torch.randint(0, 20, (16,)), "offsets": offsets}

    return {name: make() for name, make in TABLES.items()}, batch


@pytest.mark.parametrize("name", TABLES)
def test_table_beside_torch(name):
    assert_part_alike(tables, name)


def test_sparse_tables_have_sparse_gradients():
    made = trained(Looked(nn.Embedding(20, 6, sparse=True)), lambda: (torch.randint(0, 20, (ROWS, 4)),), count=1)
    lookups = [op for op in made.training.module["main"].main_block.ops if op.type.startswith("lookup_table")]
    assert [op.attrs["is_sparse"] for op in lookups] == [True, True]
