"""`prep.ArrayRecordDataSource` beside `array_record`'s class of that name."""

import dataclasses
import gc
import pathlib
import pickle
import random
import subprocess
import sys

import pytest
from array_record.python import array_record_data_source, array_record_module

import prep

DATA = pathlib.Path(__file__).parent / "data"


@dataclasses.dataclass
class Instruction:
    filename: object
    skip: int
    take: int
    examples_in_shard: int


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Four files, one of them empty, in three kinds of compression."""
    folder = tmp_path_factory.mktemp("files")
    draw = random.Random(1)
    paths = []
    for number, options in enumerate(["group_size:1,uncompressed", "group_size:1,zstd:3", "group_size:1", "group_size:1,zstd:1"]):
        path = folder / f"part.array_record-{number:05}-of-00004"
        writer = array_record_module.ArrayRecordWriter(str(path), options)
        for _ in range(0 if number == 2 else 50 + number):
            writer.write(draw.randbytes(draw.choice([0, 1, 7, 300, 70_000])))
        writer.close()
        paths.append(str(path))
    return paths


def forms(files):
    yield files[0]
    yield pathlib.Path(files[1])
    yield files
    yield tuple(map(pathlib.Path, files))
    yield [f"{files[0]}[5:20]", files[1]]
    yield Instruction(files[1], 3, 4, 51)
    yield [Instruction(pathlib.Path(files[3]), 0, 53, 53), f"{files[0]}[0:0]", files[0]]


def test_every_constructor_form_gives_the_same_records_as_array_record(files):
    for form in forms(files):
        theirs = array_record_data_source.ArrayRecordDataSource(form)
        ours = prep.ArrayRecordDataSource(form)
        assert len(ours) == len(theirs)
        assert repr(ours) == repr(theirs)
        indices = list(range(len(theirs)))
        random.Random(2).shuffle(indices)
        assert [ours[index] for index in indices] == theirs.__getitems__(indices)
        assert ours.__getitems__(indices) == theirs.__getitems__(indices)
        assert list(ours) == list(theirs)


def test_a_glob_gives_the_files_in_order(files):
    assert list(prep.ArrayRecordDataSource(files[0][:-14] + "*")) == list(prep.ArrayRecordDataSource(files))
    with pytest.raises(prep.errors.NotFoundError, match="no file matches"):
        prep.ArrayRecordDataSource("nothing-here-*")


def test_what_array_record_refuses_is_refused_with_a_value_error(files):
    for form in ([], 3, None, [files[0], 3]):
        with pytest.raises(ValueError):
            array_record_data_source.ArrayRecordDataSource(form)
        with pytest.raises(ValueError):
            prep.ArrayRecordDataSource(form)
    source = prep.ArrayRecordDataSource(files)
    for index in (-1, len(source), 2**70):
        with pytest.raises(ValueError):
            source[index]
        with pytest.raises(IndexError):
            source.__getitems__([0, index])
    for index in ("0", 0.5, None):
        with pytest.raises(TypeError):
            source[index]


def test_missing_and_damaged_files_are_named(files, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.array_record"):
        prep.ArrayRecordDataSource("absent.array_record")
    whole = pathlib.Path(files[0]).read_bytes()
    cut = tmp_path / "cut.array_record"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(prep.errors.DamagedError, match="cut.array_record"):
        prep.ArrayRecordDataSource(cut)
    flipped = bytearray(whole)
    place = whole.index(max(prep.ArrayRecordDataSource(files[0]), key=len)[:32])
    flipped[place] ^= 1
    (tmp_path / "flipped.array_record").write_bytes(flipped)
    source = prep.ArrayRecordDataSource(tmp_path / "flipped.array_record")
    faults = 0
    for index in range(len(source)):
        try:
            assert source[index] == prep.ArrayRecordDataSource(files[0])[index]
        except prep.errors.DamagedError as error:
            faults += 1
            assert f"flipped.array_record, record {index}" in str(error)
    assert faults == 1
    beyond = prep.ArrayRecordDataSource(f"{files[0]}[40:99]")
    with pytest.raises(ValueError, match="the file has 50"):
        beyond[50]


def test_numpy_integers_are_indices(files):
    import numpy

    source = prep.ArrayRecordDataSource(files)
    assert source[numpy.int64(3)] == source[3]
    assert source.__getitems__(numpy.array([3, 1])) == [source[3], source[1]]


def test_pickles_small_with_attributes_and_without_opening(files):
    source = prep.ArrayRecordDataSource(files)
    first = source[0]
    text = pickle.dumps(source)
    assert len(text) < 1000
    again = pickle.loads(text)
    assert (len(again), again[0], repr(again)) == (len(source), first, repr(source))
    moved = pickle.loads(text.replace(b"00000-of", b"0000x-of"))
    assert len(moved) == len(source)
    with pytest.raises(FileNotFoundError):
        moved[0]


class Subclass(prep.ArrayRecordDataSource):
    def __init__(self, paths, label):
        super().__init__(paths)
        self.label = label

    def __new__(cls, paths, label):
        return super().__new__(cls, paths)

    def __getitem__(self, index):
        return super().__getitem__(index)[:1]


def test_can_be_subclassed_and_pickled(files):
    source = pickle.loads(pickle.dumps(Subclass(files, "x")))
    assert source.label == "x" and len(source[0]) <= 1


def test_closing_lets_go_of_the_files_and_a_later_read_opens_them_again(files):
    with prep.ArrayRecordDataSource(files) as source:
        first = source[0]
    assert source[0] == first
    del source
    gc.collect()
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists():
        assert files[0] not in maps.read_text()


def test_importing_and_reading_records_needs_no_numpy():
    code = "import sys, prep; prep.ArrayRecordDataSource(sys.argv[1])[0]; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, DATA / "words.array_record"], check=True)
