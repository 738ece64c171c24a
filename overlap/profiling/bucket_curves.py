"""What ``overlap bench bucket --json`` has written, as curves for the page. Its keys are defined in docs/collective.md.

A sweep has rows beside compute and the fit of its calls; a fit of tables is a list of fits, without rows.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overlap.errors import ConfigError, message

_ROW = (
    *("bucket_bytes", "in_flight", "buckets", "call_us", "busbw_alone_gbps", "busbw_beside_gbps"),
    *("alone_ms", "compute_ms", "step_ms", "exposed_ms", "slowdown"),
)


def bucket_curves(path: Path) -> list[dict[str, Any]]:
    """The curves of a file, JSON-ready, one per fit.

    Raises:
        ConfigError: it cannot be read, or is none of these files.
    """
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        fits = written if isinstance(written, list) else [written["advice"]]
        found = [_curve(fit, {} if fits is written else written) for fit in fits]
    except OSError as error:
        raise _refused(path, error.strerror or "it cannot be read") from error
    except KeyError as error:
        raise _refused(path, f"no {error}") from error
    except (ValueError, TypeError) as error:
        raise _refused(path, "something else") from error
    if not all(curve["calls"] for curve in found) or not found:
        raise _refused(path, "no sizes")
    return found


def _curve(fit: Mapping[str, Any], sweep: Mapping[str, Any]) -> dict[str, Any]:
    rows = [{key: row[key] for key in _ROW} for row in sweep["rows"]] if sweep else []
    return {
        "label": f"{fit['label']}, {fit['ranks']} ranks",
        "machine": str(sweep["machine"].get("cpu", "")) if sweep else "",
        "share": fit["share"],
        "busbw": fit["busbw_gbps"],
        "bucket": fit["bucket_bytes"],
        "calls": [_call(point) for point in fit["points"]],
        "rows": rows,
        "fastest": min(rows, key=lambda row: row["step_ms"]) if rows else None,
    }


def _call(point: Mapping[str, Any]) -> dict[str, float]:
    """A call alone; bandwidth goes with one over time, so the fit's follows from both times."""
    speed, took = point["busbw_gbps"], point["time_us"]
    return {"bytes": point["size"], "time_us": took, "busbw": speed, "fit": speed * took / point["fitted_us"]}


def _refused(path: Path, why: str) -> ConfigError:
    cure = "name a file that `overlap bench bucket --json FILE` has written"
    return ConfigError(message("buckets", "be figures of a sweep or a fit", f"{path} ({why})", cure))
