import pytest

from overlap.profiling.attribution import unit_and_phase


@pytest.mark.parametrize(
    ("ranges", "unit", "phase"),
    [
        ((), "", ""),
        (("ProfilerStep#3", "nccl:all_reduce"), "", ""),
        (("nn.Module: Net_0", "nn.Module: Block_3", "aten::linear, seq = 4, op_id = 7"), "Net_0/Block_3", ""),
        (("nn.Module: Net_0", "overlap:gather blocks.3"), "blocks.3", "gather"),
        (("overlap:norm",), "", "norm"),
        (
            ("FSDP::pre_forward (layers.1)", "FSDP::all_gather (layers.2)", "nccl:_all_gather_base"),
            "layers.2",
            "all_gather",
        ),
        (("FSDP::pre_backward (layers.1)", "FSDP::backward_prefetch for layers.0"), "layers.0", "backward_prefetch"),
        (("FSDP::pre_forward (layers.1)", "FSDP::forward_prefetch for layers.2"), "layers.2", "forward_prefetch"),
        (("FSDP::forward", "FSDP::forward (experts) [pg=4]", "nn.Module: Net_0"), "experts", "forward"),
        (("train", "FSDP::forward"), "", "forward"),
        (("train", "FSDP::backward", "## loss ##"), "## loss ##", "backward"),
        (("nn.Module: Net_0", "FSDP::forward", "nn.Module: Head_1"), "Net_0/Head_1", "forward"),
        (("nn.Module: Net_0", "FSDP::all_gather", "nccl:_all_gather_base"), "", "all_gather"),
        (("FSDP::forward", "## mine ##", "FSDP::forward (layers.1)", "## inner ##"), "layers.1", "forward"),
        (("FSDP::root_pre_forward",), "", "root_pre_forward"),
        (("## forward ##", "## forward:over_arch ##"), "## forward:over_arch ##", ""),
        (("DistributedDataParallel.forward", "Optimizer.step#AdamW.step"), "Optimizer.step#AdamW.step", ""),
    ],
)
def test_the_most_telling_range_names_the_unit(ranges, unit, phase):
    assert unit_and_phase(ranges) == (unit, phase)
