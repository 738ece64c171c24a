"""Kernels of libraries that communicate on their own, as profilers write their names: demangled by Kineto, demangled by
Nsight Systems (``<unnamed>``, ``(int)8``), and mangled, as Kineto leaves a name of more than 1024 characters
(pytorch/kineto, libkineto/src/Demangle.cpp). Lists of arguments are shortened: rules read what stands before them.
"""

import pytest

from overlap.profiling.classify import classifier
from overlap.profiling.recording import COMMUNICATION

# deepseek-ai/DeepEP at dd758caf, csrc/kernels/legacy/{intranode,internode,internode_ll,layout}.cu; until 2026 without
# `legacy`. Without `_impl` before: deep_ep/include/deep_ep/impls/*.cuh. Branch hybrid-ep at 94a9f8f6:
# csrc/kernels/pcie.cu, csrc/hybrid_ep/backend/hybrid_ep_backend.cuh.
DEEP_EP = [
    "void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *, float *, float *, i",
    "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int, int, int**, int)",
    "void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*, int*, int, int, int, bool const*, int*)",
    "void deep_ep::legacy::intranode::barrier<8>(int**, int)",
    "void deep_ep::legacy::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*)",
    "void deep_ep::legacy::internode::cached_notify<false, 4096>(int, int)",
    "void deep_ep::legacy::internode_ll::dispatch<true, false, 7168>(void*, void*)",
    "void deep_ep::legacy::internode_ll::clean_low_latency_buffer<256>(int*, int, int*, int, int, int, int*, int*)",
    "void deep_ep::elastic::dispatch_impl<true, 24>(void*, int)",
    "void deep_ep::elastic::hybrid_combine_impl<true, 24>(__nv_bfloat16*)",
    "void deep_ep::elastic::pp_send_impl<4, 2, 65536, 1l>(void*)",
    "void deep_ep::elastic::engram_fetch_wait_impl<8, 128>(void*)",
    "void deep_ep::pcie::cached_notify_pcie<false, 4>(int, int)",
    "void deep_ep::pcie::dispatch_pcie<false, 4>(int4*)",
    "void hybrid_ep::combine_kernel<8>(int)",
    "void nccl_ep::internode_ll::combine<true, (ncclEpLayout_t)1>(void*)",
    "_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvP4int4Pf",
    "_ZN7deep_ep6legacy12internode_ll7combineILb1ELb0ELi7168EEEvPvS3_",
    "_ZN7deep_ep6legacy9intranode21cached_notify_combineILi8EEEvPPvPiiiiPS5_i",
    "_ZN7deep_ep7elastic20hybrid_dispatch_implILb1ELi24EEEvPvi",
    "_ZN9hybrid_ep14combine_kernelILi8EEEvi",
]

# NVIDIA/nvshmem at 2d7d25f0, src/include/internal/non_abi/nvshmemi_h_to_d_{coll,rma,sync}_defs.cuh and
# src/host/stream/coll/rdxn/reduce_team.cu.
NVSHMEM = [
    "void alltoall_on_stream_kernel<int>(int, int*, int const*, unsigned long, int)",
    "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)",
    "void reducescatter_on_stream_kernel<float, (rdxn_ops)4>(int, float*, float const*, unsigned long, int)",
    "void nvshmemi_reduce_kernel<int, (rdxn_ops)4>(int, int, int, int*, int const*, unsigned long, int*, long*)",
    "void nvshmemi_proxy_rma_entrypoint_blocking<false>(void*, void*, rma_bytesdesc_t, int)",
    "nvshmemi_uint64_wait_until_on_stream_kernel(unsigned long volatile*, int, unsigned long)",
    "nvshmemi_signal_op_kernel(unsigned long*, unsigned long, int, int)",
    "nvshmemi_proxy_quiet_entrypoint()",
    "_Z36barrier_on_stream_kernel_threadgroupIL13threadgroup_t2EEvii",
    "_Z25nvshmemi_signal_op_kernelPmmii",
]

# pytorch/pytorch, torch/csrc/distributed/c10d/symm_mem/: CUDASymmetricMemoryOps.cu (anonymous namespace) at 03a4032b,
# CUDASymmetricMemory.cu at 029e4735, nvshmem_extension.cu at 0047056e, nccl_extension.cu at 010503d5,
# ops/nccl_reduce_scatter_offset.cu and ops/nccl_all_to_all_nd.cu at 0a207101.
SYMMETRIC_MEMORY = [
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
    "void <unnamed>::multimem_all_reduce_kernel<c10::BFloat16, (int)16>(T1 *, unsigned long, unsigned int **)",
    "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float, 16>(float*, float*, unsigned long)",
    "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*, unsigned long, unsigned int**)",
    "void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16, 8>(float**, float*, float*, unsigned long)",
    "void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16, 8, true, false>(float**, float*)",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(c10::BFloat16**)",
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
    "c10d::symmetric_memory::multimem_barrier_kernel(unsigned int*, unsigned int*, int, int, int, unsigned long)",
    "c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int, unsigned long)",
    "void c10d::nvshmem_extension::exchangeSplitAndOffset_2d<true>(long*, long*, int, int, int, unsigned long, bool)",
    "c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int, int)",
    "c10d::nccl_extension::lsa_put_signal_kernel(void**, void**, int, unsigned long, void const*, unsigned long)",
    "c10d::nccl_extension::nccl_wait_for_signal_kernel(void**, int, unsigned long)",
    "void c10d::nccl_extension::reduce_scatter_offset_kernel<float, true>(ncclWindow_vidmem*)",
    "c10d::nccl_extension::all_to_all_lsa_kernel(ncclWindow_vidmem*, unsigned long, unsigned char*)",
    "_ZN66_GLOBAL__N__51f43292_25_CUDASymmetricMemoryOps_cu_c81adf72_277485226multimem_all_reduce_kernelIN3c108BFloat16E"
    "Li16EEEvPT_mPPjmm",
    "_ZN4c10d16symmetric_memory23multimem_barrier_kernelEPjS1_iiim",
    "_ZN4c10d17nvshmem_extension25exchangeSplitAndOffset_2dILb1EEEvPlS2_iiimb",
    "_ZN4c10d14nccl_extension14lsa_put_kernelEPPvimPKvm",
]

CUSTOM = [
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    "void c10d::intra_node_comm::oneShotAllReduceKernel<8u, true>(__nv_bfloat16*, unsigned long)",
    "_ZN4c10d15intra_node_comm22oneShotAllReduceKernelILj8ELb1EEEvP2BFm",
]

# Of the same files: what works on its own rank's memory. And names that others use for something else.
LOCAL = [
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void deep_ep::legacy::layout::get_dispatch_layout<256, 4>(long const*, int*)",
    "void deep_ep::legacy::internode_ll::clean_mask_buffer<32>(int*, int)",
    "void deep_ep::elastic::dispatch_copy_epilogue_impl<24>(void*, void*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<24>(__nv_bfloat16*)",
    "void deep_ep::elastic::dispatch_deterministic_prologue_impl<24>(long*, int*)",
    "_ZN7deep_ep7elastic27dispatch_copy_epilogue_implILi24EEEvPvS2_",
    "_ZN7deep_ep6legacy6layout19get_dispatch_layoutILi256ELi4EEEvPKlPi",
    "void hybrid_ep::scan<8>(bool const*)",
    "_ZN9hybrid_ep4scanILi8EEEvPKb",
    "void nvshmemi_init_array_kernel<int>(int*, int, int)",
    "void tile_reduce_kernel<float>(float const*, float*, long long)",
    "void my_kernel(c10d::symmetric_memory::SymmetricMemory*)",
]

NAMED = [
    *((name, "DeepEP") for name in DEEP_EP),
    *((name, "NVSHMEM") for name in NVSHMEM),
    *((name, "symmetric memory") for name in SYMMETRIC_MEMORY),
    *((name, "custom all-reduce") for name in CUSTOM),
]


@pytest.fixture(scope="module")
def shipped():
    return classifier()


@pytest.mark.parametrize(("name", "library"), NAMED)
def test_its_library_is_known(shipped, name, library):
    rule = shipped.rule_of(name)
    assert rule is not None
    assert (rule.category, rule.library) == (COMMUNICATION, library)


@pytest.mark.parametrize("name", LOCAL)
def test_local_work_is_not_taken_for_communication(shipped, name):
    assert shipped.rule_of(name) is None
