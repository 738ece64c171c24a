"""The shipped manifest knows the names that libraries really use; rules of a user come first; bad ones are refused."""

import pytest

from overlap.errors import ConfigError
from overlap.profiling.classify import classifier, parse_rules
from overlap.profiling.recording import COMMUNICATION, COMPUTE

NAMES = [
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "NCCL"),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "NCCL"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL"),
    ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "NCCL"),
    ("ncclSymkDevKernel_ReduceScatter_LDMC_sum_bf16", "NCCL"),
    ("gloo:all_gather", "gloo"),
    ("overlap:gather blocks.3", "overlap"),
]
COMPUTES = [
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "void at::native::reduce_kernel<512, 1, ReduceOp<float> >(ReduceOp<float>)",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<2u> >",
    "flash_fwd_kernel",
    "_pack_kernel",
    "triton_red_fused_all_reduce_0_like_name_of_inductor",
    "overlap:forward blocks.3",
]


@pytest.mark.parametrize(("name", "library"), NAMES)
def test_communication_is_known_by_name(name, library):
    rule = classifier().rule_of(name)
    assert rule is not None
    assert (rule.category, rule.library) == (COMMUNICATION, library)


@pytest.mark.parametrize("name", COMPUTES)
def test_compute_is_not_taken_for_it(name):
    assert classifier().rule_of(name) is None


def test_rules_of_a_user_come_first(tmp_path):
    rules = tmp_path / "mine.toml"
    rules.write_text(
        "[[rule]]\npattern = '^my_exchange'\ncategory = 'communication'\nlibrary = 'mine'\n"
        "[[rule]]\npattern = '^ncclDevKernel_Generic'\ncategory = 'compute'\n"
    )
    mine = classifier(rules)
    assert mine.rule_of("my_exchange_v2").library == "mine"
    assert mine.rule_of("ncclDevKernel_Generic(int)").category == COMPUTE
    assert mine.rule_of("ncclDevKernel_AllGather_RING_LL").category == COMMUNICATION


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[rule]", "rules must be TOML"),
        ("[[rules]]\npattern = 'x'", "key of rules must be one of rule, but got rules; did you mean rule"),
        ("rule = 3", "rule of rules must be an array of tables"),
        ("[[rule]]\ncategory = 'compute'", "pattern of rule 1 of rules must be text, but got None"),
        ("[[rule]]\npattern = 'x'", "category of rule 1 of rules must be text"),
        ("[[rule]]\npattern = 'x'\ncategory = 'comm'", "category of rule 1 of rules must be one of compute, comm"),
        ("[[rule]]\npatern = 'x'", "must be one of pattern, category, library, but got patern; did you mean pattern"),
        ("[[rule]]\npattern = '('\ncategory = 'compute'", "must be a regular expression"),
    ],
)
def test_a_bad_manifest_is_refused(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse_rules(text, "rules")


def test_a_manifest_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="comm_kernels must be readable"):
        classifier(tmp_path / "none.toml")
