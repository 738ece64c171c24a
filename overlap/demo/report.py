"""The end of a run on the terminal: what was hidden, what was exposed, what it took."""

from rich.console import Console

from overlap.demo.ledger import memory_formula, memory_rows, wire_formula, wire_rows
from overlap.demo.results import Results
from overlap.profiling.report_lanes import draw_lanes
from overlap.profiling.report_terminal import memory_table, totals_table, unit_table, wire_table


def print_report(results: Results, console: Console) -> None:
    """Print the tables, the drawing of rank 0's last step, and where the files are."""
    console.print(totals_table(results.metrics))
    console.print(unit_table(results.metrics))
    last = results.timeline.steps()[-1]
    spans = [span for span in results.timeline.of_step(last) if span.rank == 0]
    console.print("last step on rank 0", style="bold")
    console.print(draw_lanes(spans, console.width), markup=False, highlight=False)
    memory, wire = results.engine.memory(), results.engine.wire()
    console.print()
    console.print(memory_table(memory_rows(memory)))
    console.print(memory_formula(memory), highlight=False)
    console.print()
    console.print(wire_table(wire_rows(wire)))
    console.print(wire_formula(wire), highlight=False)
    console.print()
    console.print(closing(results), highlight=False)


def closing(results: Results) -> str:
    """What was learned, in how much time, under which plan, and where it is written."""
    held, plan = results.heldout, results.engine.plan
    return "\n".join(
        [
            f"held-out bits per byte {held.before:.3f} -> {held.after:.3f}",
            f"step {results.journal.median_step_ms():.1f} ms (median)",
            f"plan {plan.hash if plan else 'none'}, {results.engine.deviations} deviations",
            f"written to {results.settings.out}: summary.json metrics.jsonl timeline.json plan.json",
        ]
    )
