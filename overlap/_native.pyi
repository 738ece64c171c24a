"""Signatures of csrc/bindings.cpp. Tensors are ``data_ptr()``; dtypes ``enum DType`` of csrc/convert.h."""

def pack(
    regions: int,
    sources: int,
    region_count: int,
    bucket: int,
    dtype: int,
    world: int,
    width: int,
    scale: float,
    accumulate: bool,
    threads: int,
    /,
) -> None: ...
def adamw(
    master: int,
    exp_avg: int,
    exp_avg_sq: int,
    grad_dtype: int,
    grad: int,
    shard_dtype: int,
    shard: int,
    size: int,
    decay: float,
    blend1: float,
    beta2: float,
    blend2: float,
    root_correction2: float,
    eps: float,
    step_size: float,
    grad_factor: float,
    threads: int,
    /,
) -> None: ...
def grad_norm(dtype: int, grad: int, size: int, out: int, accumulate: bool, threads: int, /) -> None: ...
def reduce_sum(
    row_dtype: int,
    rows: int,
    row_count: int,
    out_dtype: int,
    out: int,
    size: int,
    scale: float,
    accumulate: bool,
    threads: int,
    /,
) -> None: ...
