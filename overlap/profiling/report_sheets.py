"""What a report says, as sheets, in the order in which a reader asks: where, who, through what, why, who was late."""

from collections import defaultdict
from collections.abc import Iterator

from overlap.profiling.analysis import Analysis, RankAnalysis
from overlap.profiling.communicators import CommunicatorRow
from overlap.profiling.rank_report import NO_UNIT, UnitRow
from overlap.profiling.reasons import CURES
from overlap.profiling.report_style import bar, ms
from overlap.profiling.sheet import Sheet

_SHOWN = 20
"""Rows of a list whose length depends on the program; files have all of them."""


def sheets(analysis: Analysis) -> Iterator[Sheet]:
    """Every sheet that has something to say."""
    worst = analysis.worst
    yield rank_sheet(analysis)
    yield parts_sheet(worst)
    yield unit_sheet(worst)
    if worst.communicators:
        yield communicator_sheet(worst)
        yield reason_sheet(worst)
    if analysis.skew.collectives:
        yield skew_sheet(analysis)


def rank_sheet(analysis: Analysis) -> Sheet:
    """A row per rank: its span, what filled it, and the overlap ratio."""
    heads = ["span", "compute", "comm", "exposed comm", "exposed copies", "idle", "overlap ratio"]
    with_mfu = any(rank.mfu is not None for rank in analysis.ranks)
    rows = [[*_rank_row(rank), *([_share(rank.mfu)] if with_mfu else [])] for rank in analysis.ranks]
    heads += ["MFU %"] if with_mfu else []
    return Sheet(title="where the time went, per rank, ms", left="rank", heads=_broken(heads), rows=rows)


def parts_sheet(rank: RankAnalysis) -> Sheet:
    """The parts of one rank's span, which add up to it; what hides and what slows."""
    totals = rank.report.totals
    parts = {
        "compute": totals.compute_ns,
        "exposed communication": totals.exposed_comm_ns,
        "exposed copies": totals.exposed_copy_ns,
        "idle": totals.idle_ns,
        "span": totals.span_ns,
    }
    rows = [[name, ms(ns), _share(ns / totals.span_ns if totals.span_ns else 0.0)] for name, ns in parts.items()]
    for row, ns in zip(rows, parts.values(), strict=True):
        row.append(bar(ns / totals.span_ns if totals.span_ns else 0.0))
    ratio = f"no ratio: {totals.no_comm_reason}" if totals.ratio is None else f"overlap ratio {totals.ratio:.3f}"
    rows.append(["communication", ms(totals.comm_ns), "", f"{totals.comm_ops} collectives"])
    rows.append(["hidden under compute", ms(totals.hidden_comm_ns), "", ratio])
    title = f"rank {rank.report.rank}, which has the most exposed communication"
    return Sheet(title=title, left="", heads=["ms", "%", ""], rows=rows, texts=1, note=_asides(rank))


def unit_sheet(rank: RankAnalysis) -> Sheet:
    """The units with the most exposed communication, then those that communicate and compute most."""
    rows = sorted(rank.report.units, key=lambda row: (-row.exposed_comm_ns, -row.comm_ns, -row.compute_ns))
    note = f"the {_SHOWN} that pay most, of {len(rows)}" if len(rows) > _SHOWN else ""
    return Sheet(
        title=f"per unit, rank {rank.report.rank}, ms",
        left="unit",
        heads=["ops", "comm", "hidden", "exposed", "compute"],
        rows=[_unit_row(row) for row in rows[:_SHOWN]],
        note=note,
    )


def communicator_sheet(rank: RankAnalysis) -> Sheet:
    """Per communicator and kind: time and bandwidth; wait and transfer where ranks could be matched."""
    rows = [
        [
            _communicator(row),
            str(row.ops),
            f"{row.bytes / 1e6:.2f}" if row.bytes else "-",
            ms(row.comm_ns),
            ms(row.exposed_ns),
            "-" if row.wait_ns is None else ms(row.wait_ns),
            *(_speed(value) for value in (row.algbw, row.busbw, row.transfer_busbw)),
        ]
        for row in sorted(rank.communicators, key=lambda row: -row.comm_ns)
    ]
    heads = ["ops", "MB", "comm ms", "exposed ms", "wait ms", "algbw GB/s", "busbw GB/s", "without wait"]
    return Sheet(title=f"per communicator, rank {rank.report.rank}", left="", heads=_broken(heads), rows=rows)


def reason_sheet(rank: RankAnalysis) -> Sheet:
    """Why communication was exposed, the costliest reason first, with a cure each."""
    exposed: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for piece in rank.pieces:
        row = exposed[piece.reason]
        row[0] += 1
        row[1] += piece.end_ns - piece.start_ns
        row[2] += piece.gain_ns
    ordered = sorted(exposed.items(), key=lambda item: -item[1][1])
    rows = [[reason, str(times), ms(ns), ms(gain), CURES[reason]] for reason, (times, ns, gain) in ordered]
    title = f"why communication was exposed, rank {rank.report.rank}, ms"
    return Sheet(title=title, left="reason", heads=["times", "exposed", "gain", "cure"], rows=rows, texts=1)


def skew_sheet(analysis: Analysis) -> Sheet:
    """The collectives in which ranks waited longest for one of them."""
    collectives = sorted(analysis.skew.collectives, key=lambda one: -one.wait_ns)
    rows = [
        [
            f"{one.index} {one.name.partition('(')[0]}",
            *(ms(ns) for ns in (one.transfer_ns, one.longest_ns, one.wait_ns, one.start_skew_ns)),
            str(one.last_rank),
        ]
        for one in collectives[:_SHOWN]
    ]
    note = "wait: of all ranks together"
    if len(collectives) > _SHOWN:
        note += f"; the {_SHOWN} with the longest, of {len(collectives)}"
    heads = ["transfer", "longest", "wait", "start skew", "last rank"]
    title = "waiting inside collectives, ms"
    return Sheet(title=title, left="collective", heads=_broken(heads), rows=rows, note=note)


def _rank_row(rank: RankAnalysis) -> list[str]:
    totals = rank.report.totals
    parts = (totals.span_ns, totals.compute_ns, totals.comm_ns)
    rest = (totals.exposed_comm_ns, totals.exposed_copy_ns, totals.idle_ns)
    ratio = "-" if totals.ratio is None else f"{totals.ratio:.3f}"
    return [str(rank.report.rank), *(ms(ns) for ns in (*parts, *rest)), ratio]


def _unit_row(row: UnitRow) -> list[str]:
    figures = (row.comm_ns, row.hidden_comm_ns, row.exposed_comm_ns, row.compute_ns)
    return [row.unit or NO_UNIT, str(row.comm_ops), *(ms(ns) if ns else "-" for ns in figures)]


def _communicator(row: CommunicatorRow) -> str:
    """Names of lanes and of gloo's group begin with the library already."""
    library = "" if row.group.startswith(row.library) else row.library
    return " ".join(filter(None, (library, row.group, row.collective or "(unknown kind)")))


def _asides(rank: RankAnalysis) -> str:
    """What the parts do not show: how much hiding slows compute, how late the host is."""
    lines = []
    slower = rank.slowdown
    if slower.fraction is not None:
        change = f"{100 * slower.fraction:+.0f} % ({slower.kernels} kernels with samples of both kinds)"
        lines.append(f"compute beside communication against the same alone: {change}")
    if rank.lateness:
        late = rank.lateness
        ahead = f"it launches {late.queued_ns / 1e3:.0f} µs ahead (median)"
        lines.append(f"idle because the host had launched nothing: {ms(late.late_ns)} ms; {ahead}")
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _broken(heads: list[str]) -> list[str]:
    """Two-word heads over two lines."""
    return [head.replace(" ", "\n") for head in heads]
