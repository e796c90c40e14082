"""Packed sequences, and sizes that a run computes, are trained as by torch: the losses and the parameters."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence  # noqa: E402

import pstranspile as ps  # noqa: E402
import pstranspile.torch as pt  # noqa: E402
from pstranspile.ir.diagnostics import DiagnosticError  # noqa: E402
from tests.frontends.torch.beside import trained  # noqa: E402

ROWS, STEPS, WIDTH = 6, 7, 4


class Texts(nn.Module):
    """A recurrent layer over rows of words with lengths, which `use` takes."""

    def __init__(self, use: Callable[..., Any], layer: Any = nn.LSTM, **options: Any):
        super().__init__()
        self.use = use
        self.words = nn.Embedding(12, WIDTH)
        self.layer = layer(WIDTH, WIDTH, batch_first=True, **options)
        self.last = nn.LazyLinear(3)

    def packed(self, words: Any, lengths: Any) -> Any:
        return pack_padded_sequence(self.words(words), lengths.cpu(), batch_first=True, enforce_sorted=False)

    def padded(self, words: Any, lengths: Any, **options: Any) -> Any:
        return pad_packed_sequence(self.layer(self.packed(words, lengths))[0], batch_first=True, **options)

    def forward(self, words: Any, lengths: Any, labels: Any) -> Any:
        return functional.cross_entropy(self.last(self.use(self, words, lengths)), labels)


def batch() -> Any:
    return torch.randint(0, 12, (ROWS, STEPS)), torch.randint(1, STEPS - 1, (ROWS,)), torch.randint(0, 3, (ROWS,))


def most(model: Any, words: Any, lengths: Any) -> Any:
    return model.padded(words, lengths)[0].max(1)[0]


def states(model: Any, words: Any, lengths: Any) -> Any:
    hidden, cells = model.layer(model.packed(words, lengths))[1]
    return torch.cat([hidden[-1], cells[0]], 1)


def last_state(model: Any, words: Any, lengths: Any) -> Any:
    return model.layer(model.packed(words, lengths))[1][-1]


def mean(model: Any, words: Any, lengths: Any, **options: Any) -> Any:
    padded, sizes = model.padded(words, lengths, **options)
    return padded.sum(1) / sizes.unsqueeze(1)


def attention(model: Any, words: Any, lengths: Any) -> Any:
    padded, sizes = model.padded(words, lengths)
    inside = torch.arange(padded.size(1))[None, :] < sizes[:, None]
    shares = padded.sum(2).masked_fill(~inside, -1e9).softmax(1)
    return (shares.unsqueeze(2) * padded).sum(1)


def last_steps(model: Any, words: Any, lengths: Any) -> Any:
    padded, sizes = model.padded(words, lengths)
    return padded[torch.arange(padded.size(0)), sizes - 1]


def of_elements(model: Any, words: Any, lengths: Any) -> Any:
    """The elements are changed between two layers."""
    packed = model.layer(model.packed(words, lengths))[0]
    changed = PackedSequence(torch.tanh(packed.data), *packed[1:])
    return pad_packed_sequence(model.layer(changed)[0], batch_first=True)[0].mean(1)


def mean_of_elements(model: Any, words: Any, lengths: Any) -> Any:
    return model.layer(model.packed(words, lengths))[0].data.mean(0, keepdim=True).expand(words.shape[0], WIDTH)


def from_states(model: Any, words: Any, lengths: Any) -> Any:
    """Two passes, of which the second begins with the states of the first, in the order of the batch."""
    packed = model.packed(words, lengths)
    return model.layer(packed, model.layer(packed)[1])[1][0][-1]


def sorted_before(model: Any, words: Any, lengths: Any) -> Any:
    sizes, order = lengths.sort(descending=True)
    packed = pack_padded_sequence(model.words(words)[order], sizes, batch_first=True)
    return model.layer(packed)[1][0][-1][order.argsort()]


def of_lists(model: Any, words: Any, lengths: Any, made: str) -> Any:
    sizes = getattr(lengths, made)()
    packed = pack_padded_sequence(model.words(words), sizes, batch_first=True, enforce_sorted=False)
    return model.layer(packed)[1][0][-1]


def cut_to_longest(model: Any, words: Any, lengths: Any) -> Any:
    return model.layer(model.packed(words[:, : lengths.max().item()], lengths))[1][0][-1]


def places_of_longest(model: Any, words: Any, lengths: Any) -> Any:
    inside = torch.arange(lengths.max().item())[None, :] < lengths[:, None]
    return (model.padded(words, lengths)[0] * inside.unsqueeze(2)).sum(1)


def cut_from_end(model: Any, words: Any, lengths: Any) -> Any:
    """A number below 0 counts from the end, as everywhere."""
    return model.words(words[:, : (lengths.max() - STEPS).item()]).sum(1)


def times_longest(model: Any, words: Any, lengths: Any) -> Any:
    return model.words(words).mean(1) * lengths.max().item()


CASES: dict[str, Callable[[], Any]] = {
    "most": lambda: Texts(most, bidirectional=True),
    "states": lambda: Texts(states, bidirectional=True, num_layers=2),
    "projected": lambda: Texts(states, proj_size=3),
    "gru": lambda: Texts(most, nn.GRU, bidirectional=True, num_layers=2),
    "gru_state": lambda: Texts(last_state, nn.GRU),
    "tanh": lambda: Texts(last_state, nn.RNN, bidirectional=True),
    "relu": lambda: Texts(most, nn.RNN, nonlinearity="relu", bias=False),
    "mean": lambda: Texts(mean),
    "mean_of_total": lambda: Texts(partial(mean, total_length=STEPS)),
    "mean_of_more": lambda: Texts(partial(mean, total_length=STEPS + 2, padding_value=-1.5)),
    "attention": lambda: Texts(attention),
    "last_steps": lambda: Texts(last_steps),
    "of_elements": lambda: Texts(of_elements),
    "mean_of_elements": lambda: Texts(mean_of_elements),
    "from_states": lambda: Texts(from_states),
    "sorted_before": lambda: Texts(sorted_before),
    "of_list": lambda: Texts(partial(of_lists, made="tolist")),
    "of_array": lambda: Texts(partial(of_lists, made="numpy")),
    "cut_to_longest": lambda: Texts(cut_to_longest),
    "places_of_longest": lambda: Texts(places_of_longest),
    "cut_from_end": lambda: Texts(cut_from_end),
    "times_longest": lambda: Texts(times_longest),
}


@pytest.mark.parametrize("name", CASES)
def test_trained_as_by_torch(name: str) -> None:
    torch.manual_seed(3)
    made = trained(CASES[name](), batch, count=3)
    assert made.losses_apart() < 1e-9
    assert made.apart() < 1e-9


def test_compiled_and_checked() -> None:
    torch.manual_seed(3)
    made = trained(CASES["attention"](), batch, count=1)
    ps.compile(made.training.module, ps.Job(pservers=2, trainers=2))
    assert pt.check_training(made.training, trainers=2).equal


def test_layers_are_as_before() -> None:
    before = nn.LSTM.forward, torch.Tensor.tolist, nn.utils.rnn._VF
    torch.manual_seed(3)
    trained(CASES["states"](), batch, count=1)
    assert (nn.LSTM.forward, torch.Tensor.tolist, nn.utils.rnn._VF) == before


def test_other_batch_sizes_are_refused() -> None:
    def changed(model: Any, words: Any, lengths: Any) -> Any:
        packed = model.packed(words, lengths)
        return model.layer(packed._replace(batch_sizes=packed.batch_sizes + 0))[1][0][-1]

    with pytest.raises(DiagnosticError, match="other batch_sizes than pack_padded_sequence gives"):
        trained(Texts(changed), batch, count=1)


def test_a_number_that_is_no_size_is_refused() -> None:
    def by_item(model: Any, words: Any, lengths: Any) -> Any:
        made = model.words(words).mean(1)
        return made * made.sum().item()

    with pytest.raises(DiagnosticError, match=r"without \.item\(\)"):
        trained(Texts(by_item), batch, count=1)
