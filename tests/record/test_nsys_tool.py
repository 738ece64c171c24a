"""What a rank says to nsys, in which order; whether nsys hears it is in test_real_nsys.py."""

from overlap.profiling.nsys_marks import rank_mark, rank_of_mark
from overlap.record import nsys_tool
from overlap.record.nsys_tool import NsysRecording, NvtxMarks


class Spy:
    def __init__(self):
        self.said = []

    def start(self):
        self.said.append("start")

    def stop(self):
        self.said.append("stop")

    def push(self, name):
        self.said.append(name)

    def pop(self):
        self.said.append("pop")

    def mark(self, name):
        self.said.append(name)


def test_steps_lie_inside_the_capture_and_each_says_the_rank(monkeypatch):
    monkeypatch.setattr(nsys_tool, "rank_of_process", lambda: 3)
    marks = Spy()
    recording = NsysRecording(marks)
    recording.step()
    recording.stop()
    first, second = (["ProfilerStep#0", "overlap:rank 3", "pop"], ["ProfilerStep#1", "overlap:rank 3", "pop"])
    assert marks.said == ["start", *first, *second, "stop"]


class Domain:
    def __init__(self, name, said):
        self.name, self.said = name, said

    def get_event_attributes(self, message):
        return message

    def start_range(self, message):
        self.said.append(f"{self.name} starts {message}")
        return 7

    def end_range(self, handle):
        self.said.append(f"{self.name} ends {handle}")

    def push_range(self, message):
        self.said.append(f"{self.name} pushes {message}")

    def pop_range(self):
        self.said.append(f"{self.name} pops")

    def mark(self, message):
        self.said.append(f"{self.name} marks {message}")


def test_without_cuda_a_range_says_when_to_capture(monkeypatch):
    said = []
    monkeypatch.setattr(nsys_tool, "nvtx_domain", lambda name: Domain(name, said))
    NsysRecording(NvtxMarks()).stop()
    assert said == [
        "overlap.record starts recording",
        "None pushes ProfilerStep#0",
        "None marks overlap:rank 0",
        "None pops",
        "overlap.record ends 7",
    ]


def test_a_rank_is_read_as_it_was_written():
    assert rank_of_mark(rank_mark(1023)) == 1023
    assert rank_of_mark("overlap:rank one") is None
    assert rank_of_mark("ProfilerStep#0") is None
