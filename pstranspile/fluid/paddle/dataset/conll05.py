"""The CoNLL 2005 data set: sentences whose words are labelled with their role for a verb."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

from pstranspile.fluid.paddle.dataset.common import download

UNK_IDX = 0
_AT = "http://paddlemodels.bj.bcebos.com/conll05st"
_FILE = "conll05st-release/test.wsj/{0}/test.wsj.{0}.gz"


def _file(name: str) -> str:
    return download(f"{_AT}{name}", "conll05st", "")


def _read_dictionary(name: str) -> dict[str, int]:
    with open(_file(name), encoding="utf-8") as lines:
        return {line.strip(): number for number, line in enumerate(lines)}


def _labels() -> dict[str, int]:
    with open(_file("%2FtargetDict.txt"), encoding="utf-8") as lines:
        roles = sorted({line.strip()[2:] for line in lines if line.startswith(("B-", "I-"))})
    names = [f"{place}-{role}" for role in roles for place in "BI"]
    return {name: number for number, name in enumerate([*names, "O"])}


def get_dict() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """The indices of words, of verbs and of labels, each as a dict."""
    return _read_dictionary("%2FwordDict.txt"), _read_dictionary("%2FverbDict.txt"), _labels()


def get_embedding() -> str:
    """The path of the file with trained embeddings of the words."""
    return _file("%2Femb")


def _read_gzipped_lines(archive: tarfile.TarFile, name: str) -> list[str]:
    file = archive.extractfile(name)
    assert file is not None
    return gzip.decompress(file.read()).decode().splitlines()


def _sentences() -> Iterator[list[tuple[str, list[str]]]]:
    """The sentences: for each word, the word and its columns of labels."""
    with tarfile.open(_file("/conll05st-tests.tar.gz")) as archive:
        words, columns = (_read_gzipped_lines(archive, _FILE.format(kind)) for kind in ("words", "props"))
        held: list[tuple[str, list[str]]] = []
        for word, labels in zip(words, columns, strict=False):
            if labels.split():
                held.append((word.strip(), labels.split()))
            elif held:
                yield held
                held = []


def _parse_bracket_labels(column: list[str]) -> list[str]:
    """The labels of the words of a column, from brackets such as `(A0*`, `*`, `*)`. Raises ValueError
    for other texts.
    """
    role, inside, labels = "O", False, list[str]()
    for label in column:
        if "(" in label:
            role, inside = label[1 : label.index("*")], ")" not in label
            labels.append(f"B-{role}")
        elif label == "*)":
            labels.append(f"I-{role}")
            inside = False
        elif label == "*":
            labels.append(f"I-{role}" if inside else "O")
        else:
            raise ValueError(f"{label!r} is no label of a word")
    return labels


def _corpus() -> Iterator[tuple[list[str], str, list[str]]]:
    """For each verb of each sentence, the words, the verb, and the labels of the words for that verb."""
    for sentence in _sentences():
        words = [word for word, _ in sentence]
        verbs = [labels[0] for _, labels in sentence if labels[0] != "-"]
        for number, verb in enumerate(verbs, 1):
            yield words, verb, _parse_bracket_labels([labels[number] for _, labels in sentence])


def test() -> Callable[[], Iterator[Any]]:
    """Sentences, each with one verb: the words, five columns of the words near the verb (repeated), the verb, marks,
    labels.
    """
    words, verbs, labels = get_dict()

    def samples() -> Iterator[Any]:
        for sentence, verb, named in _corpus():
            at, length = named.index("B-V"), len(sentence)
            around = range(at - 2, at + 3)
            near = [sentence[i] if 0 <= i < length else ("bos" if i < 0 else "eos") for i in around]
            context = [[words.get(word, UNK_IDX)] * length for word in near]
            marks = [int(i in around) for i in range(length)]
            numbers = [words.get(word, UNK_IDX) for word in sentence]
            yield numbers, *context, [verbs.get(verb)] * length, marks, [labels.get(name) for name in named]

    return samples
