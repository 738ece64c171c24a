import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_own_loop_learns_and_prints_its_plan():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, EXAMPLES / "own_loop.py"], capture_output=True, text=True, timeout=120, check=False
    )
    # The exit code is not looked at: gloo's threads now and then abort an interpreter that has done its work.
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]
    assert len(losses) == 20, done.stderr
    assert losses[-1] < 0.7 * losses[0]
    assert re.search(r"reduce \(root\) +packed:", done.stdout)


def test_a_program_that_ends_with_its_model_alive_hears_nothing_of_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, torch.distributed as dist, overlap\n"
        "dist.init_process_group('gloo')\n"
        "model = overlap.shard(torch.nn.Linear(256, 256))\n"
        "model(torch.ones(2, 256)).sum().backward()\n"
        "print('done')\n"
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launcher, program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("done") == 2, done.stderr
    assert "leak" not in done.stderr


def test_kernels_agree_with_torch():
    done = subprocess.run([sys.executable, EXAMPLES / "kernels.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (difference,) = re.findall(r"against torch: (\S+)", done.stdout)
    assert float(difference) < 1e-6
    assert "next gather: right" in done.stdout
