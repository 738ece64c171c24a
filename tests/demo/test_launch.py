import signal

import pytest

from overlap.demo.launch import launch
from overlap.errors import OverlapError

CHILD = """
import json, os, signal, sys, time

def report(text):
    extra = {"py_callstack": "the whole story\\n", "timestamp": str(int(time.time()))}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": {"message": text, "extraInfo": extra}}, file)

rank, ranks, argument = int(os.environ["RANK"]), os.environ["WORLD_SIZE"], sys.argv[1]
"""

# Rank 0 fails once rank 1 is gone: a lock, like a socket, is let go when its process ends.
MISSED_PEER = """
import fcntl
lock = open("lock", "w")
while rank == 0 and not os.path.exists("held"):
    time.sleep(0.01)
fcntl.flock(lock, fcntl.LOCK_EX)
open("held", "w").close()
report("ValueError: odd" if rank else "RuntimeError: Connection closed by peer")
sys.exit(1)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Write the module that the ranks run; plain Python, so that they start at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # launch sets it for good: have it restored
    monkeypatch.delenv("OMP_NUM_THREADS")

    def write(body):
        (tmp_path / "child.py").write_text(CHILD + body)
        return "child"

    return write


def test_every_rank_runs_with_its_argument_and_a_share_of_the_cores(child, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 6)
    launch(child("open(f'{rank}-of-{ranks}-{argument}-' + os.environ['OMP_NUM_THREADS'], 'w')"), "hello", 2)
    assert sorted(path.name for path in tmp_path.glob("*-of-*")) == ["0-of-2-hello-3", "1-of-2-hello-3"]


def test_threads_that_the_user_chose_stay(child, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    launch(child("open('threads-' + os.environ['OMP_NUM_THREADS'], 'w')"), "", 1)
    assert (tmp_path / "threads-5").exists()


def test_a_failure_of_ours_is_one_line(child, capfd):
    with pytest.raises(OverlapError, match=r"^rank 1: StateError: too early$"):
        launch(child("rank == 1 and (report('StateError: too early'), sys.exit(2)); time.sleep(60)"), "", 2)
    assert capfd.readouterr().err == ""


def test_any_other_failure_comes_with_its_traceback(child, capfd):
    with pytest.raises(OverlapError, match=r"^rank 0: ValueError: odd$"):
        launch(child("report('ValueError: odd'); sys.exit(1)"), "", 1)
    assert capfd.readouterr().err == "the whole story\n"


def test_the_rank_that_only_missed_its_peer_is_not_blamed(child):
    with pytest.raises(OverlapError, match=r"^rank 1: ValueError: odd$"):
        launch(child(MISSED_PEER), "", 2)


def test_the_agent_leaves_no_handler_behind(child):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    launch(child(""), "", 1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_death_by_signal_names_the_signal(child):
    with pytest.raises(OverlapError, match=r"^rank 1: Signal 9 \(SIGKILL\) received by PID \d+$"):
        launch(child("rank == 1 and os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)"), "", 2)
