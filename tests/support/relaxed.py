"""Settings for property tests: machines that run tests are shared, so one example may take long."""

from hypothesis import settings

relaxed = settings(max_examples=50, deadline=None)
