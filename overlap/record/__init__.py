"""``overlap profile -- CMD``: record any training program, ranks and all, and report on it."""
