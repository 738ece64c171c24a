import pytest

from overlap.errors import ConfigError
from overlap.profiling.classify import classifier
from overlap.profiling.sources import read_recordings

from .traces import event, kernel, write


def read(path):
    return read_recordings(path, classifier())


def test_a_folder_holds_a_file_per_rank_in_any_order(tmp_path):
    write(tmp_path / "b.json", kernel("a", 0, 1), distributedInfo={"rank": 0})
    write(tmp_path / "a.json.gz", kernel("a", 0, 1), distributedInfo={"rank": 1})
    (tmp_path / "notes.txt").write_text("not a trace")
    assert [one.rank for one in read(tmp_path)] == [0, 1]


def test_the_folder_of_a_run_of_ours_is_its_timeline(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    write(tmp_path / "timeline.json", kernel("a", 0, 1))
    assert len(read(tmp_path)) == 1


def test_two_traces_of_one_rank_are_refused(tmp_path):
    write(tmp_path / "step1_rank0.json", kernel("a", 0, 1))
    write(tmp_path / "step2_rank0.json", kernel("a", 0, 1))
    with pytest.raises(ConfigError, match=r"must be of different ranks, but got step1_rank0.json and step2_rank0.json"):
        read(tmp_path)


def test_a_path_with_nothing_to_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be a file or a folder, but got neither"):
        read(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"must hold .json, .json.gz or .sqlite files, but got none"):
        read(tmp_path)
    with pytest.raises(ConfigError, match="must hold device work, or collectives of gloo, but got neither"):
        read(write(tmp_path / "t.json", event("user_annotation", "## forward ##", 0, 5)))
