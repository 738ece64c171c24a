"""Whether a sharded model is still the model: trained side by side with its unsharded twin, first difference named.

    report = verify(make_model, batches, loss, options={"stage": 3, "unit": Block})   # on every rank
    print(report.text())

``overlap verify FILE.py:factory`` is the same from the command line. docs/verify.md says what is compared, and how.
"""

from overlap.verify.api import verify
from overlap.verify.finding import Finding
from overlap.verify.report import VerifyReport
from overlap.verify.tolerance import Tolerance

__all__ = ["Finding", "Tolerance", "VerifyReport", "verify"]
