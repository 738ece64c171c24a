import json
import os
import subprocess
import sys

import pytest

from overlap.bench.bucket.settings import SweepSettings
from overlap.cli import main
from overlap.errors import ConfigError

ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
CSV = "collective,nranks,size_bytes,oop_time_us\n" + "".join(
    f"all_gather,8,{1 << power},{20 + (1 << power) / 1e5}\n" for power in range(12, 30)
)


def bench(*arguments):
    command = [sys.executable, "-m", "overlap", "bench", "bucket", *arguments]
    environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_tables_are_fitted_without_a_process(tmp_path, monkeypatch, capsys):
    (tmp_path / "table.csv").write_text(CSV)
    file = tmp_path / "fit.json"
    asked = [str(tmp_path / "table.csv"), "--share", "50", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["overlap", "bench", "bucket", *asked])
    with pytest.raises(SystemExit, match="0"):
        main()
    (told,) = json.loads(file.read_text())
    assert told["bucket_bytes"] == pytest.approx(20 * 1e5, rel=0.01)
    assert "recommended bucket: 1.91 MiB" in capsys.readouterr().out


def test_a_sweep_beside_compute(tmp_path):
    file = tmp_path / "sweep.json"
    asked = ["-b", "64K", "-e", "1M", "-f", "4", "--total", "2M", "--in-flight", "1,2", "-n", "2", "--matrix", "64"]
    finished = bench(*asked, "--transport", "gloo", "--json", str(file))
    assert finished.returncode == 0, finished.stderr
    told = json.loads(file.read_text())
    assert [(row["bucket_bytes"], row["in_flight"], row["buckets"]) for row in told["rows"]] == [
        (size << 10, in_flight, 2048 // size) for size in (64, 256, 1024) for in_flight in (1, 2)
    ]
    for row in told["rows"]:
        assert 0 <= row["exposed_ms"] <= row["step_ms"]
        assert row["busbw_alone_gbps"] == pytest.approx((2 << 20) / 2 / row["alone_ms"] / 1e6)
        assert row["compute_ms"] > 0
    assert [point["size"] for point in told["advice"]["points"]] == [64 << 10, 256 << 10, 1 << 20]
    assert "shortest step" in finished.stdout


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"collective": "all_gather"}, "collective must be one of reduce_scatter, all_reduce"),
        ({"in_flight": (0,)}, "in_flight must be positive"),
        ({"in_flight": ()}, "in_flight must be positive"),
        ({"ranks": 1}, "ranks must be two or more"),
        ({"ratio": 0.0}, "ratio must be positive"),
        ({"share": 1.0}, "share must be between 0 and 100 %, but got 100 %"),
        ({"transport": "mpi"}, "transport must be one of"),
        ({"datatype": "int8"}, "datatype must be float, bfloat16 or half"),
        ({"rounds": 0}, "rounds must be positive"),
        ({"min_bytes": 2 << 30}, "max_bytes must be at least"),
    ],
)
def test_what_cannot_be_swept_is_refused(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        SweepSettings(**given)


def test_settings_travel_as_text():
    settings = SweepSettings(in_flight=(1, 4), ratio=0.5)
    assert SweepSettings.from_json(settings.to_json()) == settings
