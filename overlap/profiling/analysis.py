"""A report and what explains it: skew over ranks, communicators, slowdown, lateness of the host, reasons."""

from dataclasses import dataclass
from typing import Any

from overlap.profiling.communicators import CommunicatorRow, communicator_rows
from overlap.profiling.lateness import Lateness, lateness
from overlap.profiling.rank_report import RankReport, Report
from overlap.profiling.reasons import ExposedPiece, exposed_pieces
from overlap.profiling.skew import Skew, match
from overlap.profiling.slowdown import Slowdown, slowdown

_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnalysis:
    """One rank, explained."""

    report: RankReport
    communicators: tuple[CommunicatorRow, ...]
    slowdown: Slowdown
    lateness: Lateness | None
    """None where launches were not recorded."""
    pieces: tuple[ExposedPiece, ...]
    """Exposed communication by reason, in order of start."""
    mfu: float | None
    """Model FLOPs utilisation, 0 to 1; None unless FLOPs and peak were given."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the rank's figures and what explains them."""
        return {
            **self.report.to_dict(),
            "mfu": self.mfu,
            "communicators": [row.to_dict() for row in self.communicators],
            "compute_slowdown": self.slowdown.to_dict(),
            "host_lateness": self.lateness.to_dict() if self.lateness else None,
            "exposed": [piece.to_dict() for piece in self.pieces],
            "notes": list(self.report.recording.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """A report, explained."""

    report: Report
    ranks: tuple[RankAnalysis, ...]
    skew: Skew

    @property
    def worst(self) -> RankAnalysis:
        """The rank with the most exposed communication."""
        return max(self.ranks, key=lambda rank: rank.report.totals.exposed_comm_ns)

    @property
    def notes(self) -> tuple[str, ...]:
        """What sources lack and what was assumed, each once."""
        lines = [note for rank in self.ranks for note in rank.report.recording.notes]
        return tuple(dict.fromkeys([*lines, *([self.skew.note] if self.skew.note else [])]))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: everything."""
        collectives = [
            {
                "index": one.index,
                "kernel": one.name,
                "ranks": sorted(one.members),
                "start_skew_us": one.start_skew_ns / 1000,
                "end_skew_us": one.end_skew_ns / 1000,
                "transfer_us": one.transfer_ns / 1000,
                "longest_us": one.longest_ns / 1000,
                "wait_us": one.wait_ns / 1000,
                "last_rank": one.last_rank,
            }
            for one in self.skew.collectives
        ]
        head = {"source": self.report.source, "options": self.report.options.to_dict()}
        ranks = [rank.to_dict() for rank in self.ranks]
        return {**head, "ranks": ranks, "collectives": collectives, "notes": list(self.notes)}


def analyse(report: Report) -> Analysis:
    """Explain a report."""
    skew = match({rank.rank: rank.activities for rank in report.ranks})
    return Analysis(report=report, ranks=tuple(_rank(rank, report, skew) for rank in report.ranks), skew=skew)


def _rank(rank: RankReport, report: Report, skew: Skew) -> RankAnalysis:
    slower = slowdown(rank.activities, rank.cover.comm)
    waits = rank.recording.waits
    pieces = exposed_pieces(rank.rank, rank.activities, rank.cover, waits, skew, slower.fraction)
    return RankAnalysis(
        report=rank,
        communicators=communicator_rows(rank.rank, rank.activities, rank.cover.compute, skew),
        slowdown=slower,
        lateness=lateness(rank.activities, rank.cover),
        pieces=tuple(pieces),
        mfu=_mfu(rank, report),
    )


def _mfu(rank: RankReport, report: Report) -> float | None:
    """FLOPs of the window's steps over what the device could have done in its span."""
    options = report.options
    if options.flops is None or options.peak_flops is None or not rank.totals.span_ns:
        return None
    steps = max(len(rank.recording.steps) - (options.window == "steps" and len(rank.recording.steps) > 1), 1)
    return options.flops * steps / (rank.totals.span_ns / _NS_PER_S * options.peak_flops)
