"""The command line. Each verb turns its options into settings and calls the library."""

import sys
import traceback
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import torch.distributed as dist
import typer
from rich.console import Console
from rich.text import Text

from overlap.bench.bucket import command as bucket
from overlap.bench.bucket.settings import SweepSettings
from overlap.bench.bucket.worker import sweep_rank
from overlap.bench.collective import command as collectives_bench
from overlap.bench.collective.names import Layout, parse_root, words
from overlap.bench.collective.settings import CollectiveSettings
from overlap.bench.collective.sizes import parse_bytes, parse_numbers
from overlap.bench.collective.worker import bench_rank
from overlap.bench.host.session import bench_host
from overlap.bench.host.settings import HostSettings
from overlap.bench.netlab.net import Net, parse_net
from overlap.bench.report import make_console
from overlap.bench.session import bench_ops
from overlap.bench.settings import OpSettings
from overlap.bench.step.session import bench_steps
from overlap.bench.step.settings import StepSettings
from overlap.demo import worker
from overlap.demo.data import load_corpus
from overlap.demo.environment import launched, launched_ranks
from overlap.demo.launch import launch
from overlap.demo.results import make_folder
from overlap.demo.settings import TrainSettings
from overlap.demo.train import train as train_demo
from overlap.doctor.command import diagnose
from overlap.errors import ConfigError, OverlapError, message
from overlap.profiling.command import Outputs, report_command
from overlap.profiling.selection import ReportOptions
from overlap.record.command import record
from overlap.record.settings import ProfileSettings
from overlap.verify import command as verification
from overlap.verify.settings import VerifySettings
from overlap.verify.worker import verify_rank

DEFAULTS = TrainSettings()
MEASURED = CollectiveSettings()
SWEPT = SweepSettings()

app = typer.Typer(add_completion=False, no_args_is_help=True)
bench = typer.Typer(no_args_is_help=True, help="Measure against this machine and against peers, in one run.")
app.add_typer(bench, name="bench")


@app.callback()
def overlap() -> None:
    """Sharded data-parallel training whose communication is planned, visible and hidden under compute."""


@app.command()
def train(
    stage: Annotated[int, typer.Option(help="Shard 0 nothing .. 3 parameters too.")] = DEFAULTS.stage,
    ranks: Annotated[int | None, typer.Option(help="Processes to start; torchrun's under it.")] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = DEFAULTS.steps,
    size: Annotated[str, typer.Option(help="Model: tiny, small or base.")] = DEFAULTS.size,
    data: Annotated[str | None, typer.Option(help="File or folder; else Python's own library.")] = None,
    batch: Annotated[int, typer.Option(help="Sequences per step over all ranks.")] = DEFAULTS.batch,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = DEFAULTS.lr,
    dtype: Annotated[str, typer.Option(help="Compute dtype: fp32 or bf16.")] = DEFAULTS.dtype,
    optimizer: Annotated[str, typer.Option(help="AdamW of overlap or of torch.")] = DEFAULTS.optimizer,
    prefetch: Annotated[int, typer.Option(help="Units gathered ahead of compute.")] = DEFAULTS.prefetch,
    bucket_mb: Annotated[float | None, typer.Option(help="Gradient bucket; else the default.")] = None,
    lanes: Annotated[str, typer.Option(help="auto, or inline to overlap nothing.")] = DEFAULTS.lanes,
    seed: Annotated[int, typer.Option(help="Of the weights and of the batches.")] = DEFAULTS.seed,
    log_every: Annotated[int, typer.Option(help="Steps between two looks at the loss.")] = DEFAULTS.log_every,
    out: Annotated[Path, typer.Option(help="Folder for metrics, timeline and summary.")] = Path(DEFAULTS.out),
) -> None:
    """Train a byte-level GPT on real text and show what was hidden and what was exposed."""
    options = locals()  # taken first: the parameters are the settings, one to one
    settings = TrainSettings(**{**options, "ranks": _ranks(ranks), "out": str(out)})
    # Paths that cannot be read or written fail here, before any process is started.
    load_corpus(settings.data_path, context=settings.model.context)
    make_folder(Path(settings.out))
    if launched():
        worker.run(partial(train_demo, settings), show=show)
    launch("overlap.demo.worker", settings.to_json(), settings.ranks)


@app.command()
def verify(
    target: Annotated[str, typer.Argument(help="Model factory: FILE.py:name or module:name.")],
    batches: Annotated[str, typer.Option(help="Name in FILE (or FILE.py:name): batches(rank, step), or a list.")] = (
        "batches"
    ),
    loss: Annotated[
        str | None, typer.Option(help="Name of loss(model, batch); else loss in FILE, else the output's own.")
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Processes to start; torchrun's under it.")] = None,
    stage: Annotated[int, typer.Option(help="Shard 0 nothing .. 3 parameters too.")] = 3,
    unit: Annotated[str | None, typer.Option(help='A class in FILE, a pattern such as "blocks.*", or a size.')] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; else as many as a list gives, or 4.")] = None,
    param_dtype: Annotated[str | None, typer.Option(help="Compute dtype: fp32, bf16 or fp16.")] = None,
    optimizer: Annotated[str, typer.Option(help="sgd, adamw, or the name of a function of parameters.")] = "sgd",
    lr: Annotated[float | None, typer.Option(help="Learning rate of sgd (0.1) or adamw (0.001).")] = None,
    rtol: Annotated[float | None, typer.Option(help="Relative tolerance; else from the dtypes.")] = None,
    atol: Annotated[float | None, typer.Option(help="Absolute tolerance; else 1e-8.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0,
    options: Annotated[list[str] | None, typer.Option("--set", help="Engine option NAME=VALUE; repeatable.")] = None,
    json: Annotated[Path | None, typer.Option(help="File for the report.")] = None,
) -> None:
    """Train your model sharded and unsharded side by side; name the first difference. Exit status 1 if there is one."""
    given = locals()
    file = None if json is None else str(json)
    settings = VerifySettings(**{**given, "ranks": _ranks(ranks), "options": tuple(options or ()), "json": file})
    verification.check(settings)
    if launched():
        worker.run(partial(verify_rank, settings), show=show)
    if not verification.run_local(settings):
        raise typer.Exit(1)


@app.command()
def report(
    paths: Annotated[
        list[str],
        typer.Argument(help="A trace, a folder of ranks, a timeline.json or a .sqlite of nsys; two to compare."),
    ],
    json: Annotated[Path | None, typer.Option(help="File for the figures per rank and unit.")] = None,
    details: Annotated[Path | None, typer.Option(help="JSON file for everything.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for the tables.")] = None,
    html: Annotated[Path | None, typer.Option(help="File for a page with timeline, bars and waterfall.")] = None,
    buckets: Annotated[
        list[Path] | None, typer.Option(help="A --json file of bench bucket, for its curves on the page; repeatable.")
    ] = None,
    perfetto: Annotated[Path | None, typer.Option(help="Trace file for ui.perfetto.dev.")] = None,
    gate: Annotated[
        list[str] | None, typer.Option(help="Condition, e.g. 'exposed_ratio<0.1'; exit status 1 unless it holds.")
    ] = None,
    window: Annotated[str, typer.Option(help="full, or steps: without the last, cut-off one.")] = "full",
    rounding: Annotated[str, typer.Option(help="none, or hta: to whole µs.")] = "none",
    memset: Annotated[str, typer.Option(help="A memset is compute, or other: it counts with the copies.")] = "other",
    peer_copies: Annotated[str, typer.Option(help="Copies between devices: copy or comm.")] = "copy",
    comm_kernels: Annotated[str | None, typer.Option(help="TOML file of rules, before the shipped ones.")] = None,
    flops: Annotated[float | None, typer.Option(help="Model FLOPs of a step on one rank, for MFU.")] = None,
    peak_flops: Annotated[float | None, typer.Option(help="FLOP/s that one device could do, for MFU.")] = None,
) -> None:
    """Say what is exposed in a recording of any training program, why, and who pays for it."""
    given = locals()
    options = ReportOptions(**{field.name: given[field.name] for field in fields(ReportOptions)})
    outputs = Outputs(json=json, details=details, markdown=markdown, html=html, perfetto=perfetto)
    if not report_command(paths, options, outputs, gate or (), Console(), buckets or ()):
        raise typer.Exit(1)


@app.command()
def profile(
    command: Annotated[list[str], typer.Argument(help="The program as in a shell, behind --.")],
    out: Annotated[str, typer.Option(help="Empty folder for the traces.")] = "runs/profile",
    tool: Annotated[str, typer.Option(help="nsys, torch, or auto: nsys where it is installed.")] = "auto",
    skip: Annotated[int, typer.Option(help="Optimizer steps before recording starts.")] = 3,
    steps: Annotated[int, typer.Option(help="Optimizer steps to record.")] = 5,
) -> None:
    """Record a training program, all ranks of it, and report on it: ``overlap profile -- torchrun train.py``."""
    folder = record(command, ProfileSettings(out=out, tool=tool, skip=skip, steps=steps))
    console, page = Console(), folder / "report.html"
    report_command([str(folder)], ReportOptions(), Outputs(html=page), (), console)
    console.print(f"written to {page}; more: overlap report {folder} --help", highlight=False, soft_wrap=True)


@app.command()
def doctor(
    ranks: Annotated[int, typer.Option(help="Ranks of a job on this host.")] = 1,
    strict: Annotated[bool, typer.Option(help="Exit with 1 for warnings, too.")] = False,
    json: Annotated[Path | None, typer.Option(help="File for the findings.")] = None,
) -> None:
    """Look for what ends or costs overlap on this machine, with one cure each; exit status 1 if something ends it."""
    if not diagnose(ranks=ranks, strict=strict, json_file=json, console=make_console()):
        raise typer.Exit(1)


@bench.command("op")
def bench_op(
    op: Annotated[
        list[str] | None,
        typer.Option(
            help="pack, unpack, reduce_sum, grad_norm, adamw, adamw_8bit, sgd_momentum, lion, quantize, "
            "dequantize; else all."
        ),
    ] = None,
    sizes: Annotated[str, typer.Option(help="Elements: 4096, 64K, 32M, with commas.")] = "32M",
    dtypes: Annotated[str, typer.Option(help="Of the input: fp32, bf16, fp16, with commas.")] = "bf16,fp32",
    threads: Annotated[int | None, typer.Option(help="CPU threads; else as many as torch takes.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    faces: Annotated[str | None, typer.Option(help="native, triton, cuda, reference; else the fast ones.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds in which all take turns.")] = 11,
    budget: Annotated[float, typer.Option(help="Seconds for the rounds of one case.")] = 20.0,
    time_limit: Annotated[float | None, typer.Option(help="Seconds after which no case begins.")] = None,
    overhead: Annotated[bool, typer.Option(help="Also: nanoseconds per call on next to nothing.")] = False,
    json: Annotated[Path | None, typer.Option(help="File for all figures.")] = None,
) -> None:
    """Bandwidth and peers of each fused op, every value checked; exit status 1 if one is wrong."""
    options = locals()
    del options["json"]
    if bench_ops(OpSettings.parse(**options), json).wrong:
        raise typer.Exit(1)


@bench.command("collective")
def bench_collective(
    collectives: Annotated[
        list[str] | None,
        typer.Argument(help="all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, reduce; else the first 2."),
    ] = None,
    minbytes: Annotated[str, typer.Option("--minbytes", "-b", help="First size: 4096, 64K, 32M, 1G.")] = "32M",
    maxbytes: Annotated[str | None, typer.Option("--maxbytes", "-e", help="Last size; else the first.")] = None,
    stepbytes: Annotated[str, typer.Option("--stepbytes", "-i", help="From size to size.")] = "1M",
    stepfactor: Annotated[int | None, typer.Option("--stepfactor", "-f", help="Likewise, as a factor.")] = None,
    iters: Annotated[int, typer.Option("--iters", "-n", help="Timed calls.")] = MEASURED.iters,
    warmup_iters: Annotated[int, typer.Option("--warmup-iters", "-w", help="Calls before.")] = MEASURED.warmup,
    check: Annotated[int, typer.Option("--check", "-c", help="Calls whose values are checked.")] = MEASURED.check,
    op: Annotated[str, typer.Option("--op", "-o", help="sum, prod, min, max or avg.")] = MEASURED.redop,
    root: Annotated[str, typer.Option("--root", "-r", help="Of broadcast and reduce: a rank, or all.")] = "0",
    datatype: Annotated[str, typer.Option("--datatype", "-d", help="float, bfloat16, half, ..., or all.")] = "float",
    ranks: Annotated[int | None, typer.Option("--ranks", "-g", help="Processes to start; torchrun's under it.")] = None,
    transport: Annotated[str, typer.Option(help="gloo, nccl, overlap; several take turns.")] = "overlap",
    device: Annotated[str, typer.Option(help="Of overlap: cpu or cuda.")] = MEASURED.device,
    layout: Annotated[str, typer.Option(help="flat, coalesced or staged.")] = MEASURED.layout,
    pieces: Annotated[int, typer.Option(help="Tensors of a layout that is not flat.")] = MEASURED.pieces,
    out_datatype: Annotated[str | None, typer.Option(help="Of a reduce-scatter's sums; else the wire's.")] = None,
    net: Annotated[str, typer.Option(help="none, or the rate of a link per rank: 1gbit (root).")] = "none",
    json: Annotated[Path | None, typer.Option(help="File for all figures.")] = None,
) -> None:
    """Time collectives as nccl-tests does, every value checked; exit status 1 if one is wrong."""
    settings = CollectiveSettings(
        collectives=words(collectives or MEASURED.collectives),
        transports=words([transport]),
        device=device,
        ranks=_ranks(ranks),
        min_bytes=parse_bytes("minbytes", minbytes),
        max_bytes=parse_bytes("maxbytes", maxbytes or minbytes),
        step_bytes=parse_bytes("stepbytes", stepbytes),
        step_factor=stepfactor,
        iters=iters,
        warmup=warmup_iters,
        check=check,
        datatypes=words([datatype]),
        out_datatype=None if out_datatype is None else words([out_datatype])[0],
        redop=op,
        root=parse_root(root),
        layout=cast(Layout, layout),
        pieces=pieces,
        json=None if json is None else str(json),
    )
    links = _links(net)
    if launched():
        worker.run(partial(bench_rank, settings), show=show)
    if collectives_bench.run_local(settings, links).wrong:
        raise typer.Exit(1)


@bench.command("bucket")
def bench_bucket(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Logs of nccl-tests, CSV tables, --json files; else sweep here.")
    ] = None,
    share: Annotated[float, typer.Option(help="% of the bandwidth that a bucket should reach.")] = 100 * SWEPT.share,
    collective: Annotated[str, typer.Option(help="reduce_scatter or all_reduce.")] = SWEPT.collective,
    minbytes: Annotated[str, typer.Option("--minbytes", "-b", help="Smallest bucket.")] = "256K",
    maxbytes: Annotated[str, typer.Option("--maxbytes", "-e", help="Largest bucket.")] = "64M",
    stepfactor: Annotated[int, typer.Option("--stepfactor", "-f", help="From size to size.")] = SWEPT.step_factor,
    in_flight: Annotated[str, typer.Option(help="Buckets there are, with commas.")] = "1,2",
    total: Annotated[str, typer.Option(help="Bytes of a step's gradients.")] = "64M",
    datatype: Annotated[str, typer.Option("--datatype", "-d", help="float, bfloat16 or half.")] = SWEPT.datatype,
    rounds: Annotated[int, typer.Option("--iters", "-n", help="Timed rounds.")] = SWEPT.rounds,
    ratio: Annotated[float, typer.Option(help="Compute over the gradients' time in the largest bucket.")] = SWEPT.ratio,
    matrix: Annotated[int, typer.Option(help="Side of the matrices that compute multiplies.")] = SWEPT.matrix,
    ranks: Annotated[int | None, typer.Option("--ranks", "-g", help="Processes to start; torchrun's under it.")] = None,
    transport: Annotated[str, typer.Option(help="gloo, nccl or overlap.")] = SWEPT.transport,
    device: Annotated[str, typer.Option(help="Of overlap: cpu or cuda.")] = SWEPT.device,
    net: Annotated[str, typer.Option(help="none, or the rate of a link per rank: 1gbit (root).")] = "none",
    json: Annotated[Path | None, typer.Option(help="File for all figures.")] = None,
) -> None:
    """Recommend a bucket size: fit t = latency + bytes / bandwidth to tables, or to a sweep beside compute here."""
    if files:
        bucket.advise(files, share / 100, json)
        return
    settings = SweepSettings(
        collective=collective,
        transport=transport,
        device=device,
        ranks=_ranks(ranks),
        min_bytes=parse_bytes("minbytes", minbytes),
        max_bytes=parse_bytes("maxbytes", maxbytes),
        step_factor=stepfactor,
        in_flight=parse_numbers("in-flight", in_flight),
        total_bytes=parse_bytes("total", total),
        datatype=words([datatype])[0],
        rounds=rounds,
        ratio=ratio,
        matrix=matrix,
        share=share / 100,
        json=None if json is None else str(json),
    )
    links = _links(net)
    if launched():
        worker.run(partial(sweep_rank, settings), show=show)
    bucket.sweep(settings, links)


@bench.command("step")
def bench_step(
    net: Annotated[str, typer.Option(help="none, or the rate of every host's link: 1gbit, 200mbit (root).")] = "none",
    ranks: Annotated[int, typer.Option(help="Processes, each on a host of its own.")] = 2,
    contenders: Annotated[str | None, typer.Option(help="Names with commas (docs/bench.md); else all.")] = None,
    dtype: Annotated[str, typer.Option(help="Of forward and backward: fp32 or bf16.")] = "fp32",
    size: Annotated[str, typer.Option(help="Model: tiny, small, base (12.7M) or large (19.5M).")] = "base",
    batch: Annotated[int | None, typer.Option(help="Sequences per rank; else compute = wire at 1 Gbit/s.")] = None,
    rounds: Annotated[int, typer.Option(help="In which all take turns; at least 5.")] = 7,
    steps: Annotated[int, typer.Option(help="Of each contender in a round.")] = 2,
    seed: Annotated[int, typer.Option(help="Of weights and batches.")] = 0,
    tolerance: Annotated[float | None, typer.Option(help="Relative, of losses; else by dtype.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="Our engine's option NAME=VALUE; repeatable.")
    ] = None,
    memory: Annotated[bool, typer.Option(help="Also peak memory, in processes of their own.")] = True,
    json: Annotated[Path | None, typer.Option(help="File for all figures.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG of step times (needs the extra plot).")] = None,
) -> None:
    """Whole training steps of this engine and its peers in turns; exit status 1 if one computed something else."""
    given = locals()
    files = given.pop("json"), given.pop("plot")
    if bench_steps(StepSettings.parse(**given), *files).wrong:
        raise typer.Exit(1)


@bench.command("host")
def bench_host_cost(
    worlds: Annotated[str, typer.Option(help="Ranks, none of which is there, with commas.")] = "8,64,256,1024",
    units: Annotated[int, typer.Option(help="Units of the model.")] = 64,
    params: Annotated[int, typer.Option(help="Tiny parameters of a unit.")] = 9,
    rounds: Annotated[int, typer.Option(help="In which all take turns.")] = 15,
    json: Annotated[Path | None, typer.Option(help="File for all figures.")] = None,
) -> None:
    """Host time and Python calls per unit beside FSDP2's, of a step in which nobody communicates."""
    options = locals()
    path = options.pop("json")
    bench_host(HostSettings.parse(**options), path)


def show(error: Exception) -> None:
    """Print an error of ours as one red line, any other with its traceback."""
    if not isinstance(error, OverlapError):
        traceback.print_exception(error)
    rank = f"rank {dist.get_rank()}: " if dist.is_initialized() else ""
    text = Text(f"error: {rank}{error}", style="red")
    Console(stderr=True).print(text, soft_wrap=True)


def main() -> None:
    """Entry point of ``overlap`` and ``python -m overlap``."""
    try:
        app()
    except OverlapError as error:
        show(error)
        sys.exit(2)


def _links(net: str) -> Net:
    links = parse_net(net)
    if launched() and links.bits_per_s is not None:
        rule, cure = "be none under a launcher", "start without torchrun: overlap then makes a host per rank"
        raise ConfigError(message("net", rule, net, cure))
    return links


def _ranks(asked: int | None) -> int:
    if launched():
        return launched_ranks(asked)
    return DEFAULTS.ranks if asked is None else asked
