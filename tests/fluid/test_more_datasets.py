"""The readers of `paddle.dataset` give what the files of their data sets hold."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from pstranspile.fluid.paddle.dataset import common, conll05, movielens, wmt14, wmt16


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(common, "DATA_HOME", str(tmp_path))
    return tmp_path


def _tar(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def test_roles_of_words_for_each_verb(home: Path) -> None:
    folder = home / "conll05st"
    words, columns = "The\ncat\nate\nfish\n\n", "- (A0*\n- *)\neat (V*)\n- (A1*)\n\n"
    names = {"words": words, "props": columns}
    packed = {conll05._FILE.format(kind): gzip.compress(text.encode()) for kind, text in names.items()}
    _tar(folder / "conll05st-tests.tar.gz", packed)
    (folder / "conll05st%2FwordDict.txt").write_text("<unk>\nThe\ncat\nate\nfish\nbos\neos\n")
    (folder / "conll05st%2FverbDict.txt").write_text("eat\n")
    (folder / "conll05st%2FtargetDict.txt").write_text("B-A0\nI-A0\nB-V\nB-A1\nO\n")
    (sample,) = conll05.test()()
    numbers = conll05.get_dict()[2]
    assert sample[0] == [1, 2, 3, 4]
    assert [context[0] for context in sample[1:6]] == [1, 2, 3, 4, 6]
    assert (sample[6], sample[7]) == ([0] * 4, [1] * 4)
    assert sample[8] == [numbers[name] for name in ("B-A0", "I-A0", "B-V", "B-A1")]


def test_ratings_with_person_and_film(home: Path) -> None:
    path = home / "movielens" / "movielens%2Fml-1m.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ml-1m/movies.dat", "3::Big Fish (2003)::Drama|Fantasy\n")
        archive.writestr("ml-1m/users.dat", "7::F::25::4::0\n")
        archive.writestr("ml-1m/ratings.dat", "7::3::5::0\n" * 20)
    for cached in (
        movielens.movie_info,
        movielens.user_info,
        movielens.movie_categories,
        movielens.get_movie_title_dict,
    ):
        cached.cache_clear()
    train, test = list(movielens.train()()), list(movielens.test()())
    assert len(train) + len(test) == 20
    assert 0 < len(test) < len(train)
    assert train[0] == [7, 1, 2, 4, 3, [0, 1], [0, 1], [5.0]]
    assert (movielens.max_user_id(), movielens.max_movie_id(), movielens.max_job_id()) == (7, 3, 4)


def test_sentences_with_their_translation(home: Path) -> None:
    words = "<s>\n<e>\n<unk>\n{0}\n{1}\nbeyond\n"
    files = {"x/src.dict": words.format("one", "two"), "x/trg.dict": words.format("eins", "zwei")}
    files |= {"x/train/train": "one two\teins drei\nno tab\n" + "one " * 90 + "\teins\n"}
    _tar(home / "wmt14" / "wmt14.tgz", {name: text.encode() for name, text in files.items()})
    assert list(wmt14.train(5)()) == [([0, 3, 4, 1], [0, 3, 2], [3, 2, 1])]
    assert wmt14.get_dict(4)[1] == {0: "<s>", 1: "<e>", 2: "<unk>", 3: "eins"}


def test_sentences_of_both_directions_with_the_most_frequent_words(home: Path) -> None:
    pairs = "one two\teins zwei\none\teins\nno tab\ntwo one one\tzwei eins rar\n"
    _tar(home / "wmt16" / "wmt16.tar.gz", {"wmt16/train": pairs.encode(), "wmt16/test": b"two rare\tzwei\n"})
    assert wmt16.get_dict("en", 5) == {"<s>": 0, "<e>": 1, "<unk>": 2, "one": 3, "two": 4}
    assert wmt16.get_dict("de", 4, reverse=True) == {0: "<s>", 1: "<e>", 2: "<unk>", 3: "eins"}
    assert next(wmt16.train(5, 4)()) == ([0, 3, 4, 1], [0, 3, 2], [3, 2, 1])
    assert list(wmt16.test(5, 5, src_lang="de")()) == [([0, 4, 1], [0, 4, 2], [4, 2, 1])]
    (home / "wmt16" / "en_4.dict").write_text("<s>\n<e>\n<unk>\ntwo\n")
    assert wmt16.get_dict("en", 4)["two"] == 3
    with pytest.raises(ValueError, match=r"en \(English\) and de \(German\), not 'fr'"):
        wmt16.validation(5, 5, "fr")
