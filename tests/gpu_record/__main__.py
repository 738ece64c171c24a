"""``make gpu``: on a machine with an NVIDIA GPU, run what needs one and write a dated record of it.

Uses this Python as it is: no environment is made, nothing is fetched. Elsewhere says what is missing, a line each.
"""

import argparse
import datetime
import json
import shutil
import sys
from pathlib import Path

from gpu_record import needs, parts
from gpu_record.record import Record

SITE = parts.ROOT / "build" / "gpu" / "site"
RESULT = parts.ROOT / "build" / "gpu" / "result.json"


def main() -> int:
    """Return 0 where everything ran and passed."""
    parser = argparse.ArgumentParser(prog="make gpu")
    parser.add_argument("--into", type=Path, default=parts.ROOT / "profiles", help="folder for the record's folder")
    into = parser.parse_args().into
    missing = needs.missing()
    if missing:
        print("A record of GPU figures cannot be made here:", *missing, sep="\n  ")
        return 1
    record = _measure()
    print(f"record: {record.write(into)}")
    print("passed" if record.passed else "FAILED: see the record")
    return 0 if record.passed else 1


def _measure() -> Record:
    gpu = needs.ask_torch().gpu
    assert gpu is not None
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.unlink(missing_ok=True)
    home, built, notes = _package()
    variables = {"PYTHONPATH": f"{home}", "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    outcomes = built + [parts.run(part, variables) for part in [*parts.tests(), parts.bench(RESULT)]]
    result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    return Record(datetime.date.today(), gpu, outcomes, result, notes)


def _package() -> tuple[Path, list[parts.Outcome], list[str]]:
    """Build the package; where that cannot be done, say so and run from the sources, whose CPU ops are plain torch."""
    missing = needs.missing_to_build()
    shutil.rmtree(SITE, ignore_errors=True)
    outcome = None if missing else parts.run(parts.build(SITE), {})
    if outcome is not None and outcome.passed:
        return SITE, [outcome], []
    why = ", ".join(missing) or "the build failed"
    note = f"Without the compiled extensions ({why}): CPU ops ran in plain torch, CUDA ops in Triton."
    print(note, flush=True)
    return parts.ROOT, [] if outcome is None else [outcome], [note]


if __name__ == "__main__":
    sys.exit(main())
