"""Names of real kernels and functions, full and short."""

from __future__ import annotations

import doctest

import cxxfilt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.image import ElfImage
from otelgpu.symbols import demangle as module
from otelgpu.symbols.demangle import MAX_NAME_LENGTH, demangle, short_name
from tests.unit.elf.elf_builders import compile_c

AXPY = "axpy(float, float*, float*)"


@pytest.mark.parametrize(
    ("mangled", "full"),
    [
        ("_Z4axpyfPfS_", AXPY),
        ("__device_stub__Z4axpyfPfS_", AXPY),  # nvcc's host stub, as extern "C"
        ("_ZL26__device_stub__Z4axpyfPfS_fPfS_", AXPY),  # and as a static C++ function
        ("__device_stub__vec_add", "vec_add"),  # of an extern "C" kernel
        ("_Z19__device_stub__axpyfPfS_", AXPY),  # HIP
        ("_ZN2ns19__device_stub__axpyIfEEvT_", "void ns::axpy<float>(float)"),
        ("main", "main"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("_Znotaname", "_Znotaname"),
        ("", ""),
    ],
)
def test_demangled_names(mangled: str, full: str) -> None:
    assert demangle(mangled) == full


@pytest.mark.parametrize(
    ("full", "short"),
    [
        (AXPY, "axpy"),
        ("main", "main"),
        ("triton_red_fused__to_copy_mean_pow_1", "triton_red_fused__to_copy_mean_pow_1"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
            "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
            "vectorized_elementwise_kernel",
        ),
        (
            "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native::"
            "(anonymous namespace)::SoftMaxForwardEpilogue>(float*, float const*, int)",
            "cunn_SoftMaxForward",
        ),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
            "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::"
            "{lambda(float)#1}, std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int> >(int)",
            "unrolled_elementwise_kernel",
        ),
        (
            "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, "
            "cutlass::bfloat16_t, Flash_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t> >, true, false>"
            "(flash::Flash_fwd_params)",
            "flash_fwd_splitkv_kernel",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_tn_align8>("
            "cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_tn_align8::Params)",
            "Kernel2",
        ),
        (
            "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::"
            "GemmUniversal<cute::tuple<int, int, int, int>, cute::C<(int)128>, (bool)1> > >(T1::Params)",
            "device_kernel",
        ),
        (
            "void cub::CUB_200200_700_750_800_860_900_NS::DeviceReduceSingleTileKernel<cub::CUB_200200_NS::"
            "DeviceReducePolicy<float, unsigned int, cub::Sum>::Policy600, float*, float*, int, (2 > 1)>(float*)",
            "DeviceReduceSingleTileKernel",
        ),
        (
            "void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<"
            "thrust::cuda_cub::for_each_f<int*, thrust::detail::wrapped_function<f, void> >, long> >(long)",
            "_kernel_agent",
        ),
        (
            "vllm::paged_attention_v2_kernel<unsigned short, unsigned short, 128, 16, 128, "
            "(vllm::Fp8KVCacheDataType)0, false, 512>(float*, unsigned short const*)",
            "paged_attention_v2_kernel",
        ),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
        ("std::ostream& operator<< <char>(std::ostream&, char)", "operator<<"),
        ("bool ns::operator< <int>(ns::V<int> const&, ns::V<int> const&)", "operator<"),
        ("ns::P::operator->() const", "operator->"),
        ("bool std::operator<=> <int>(int, int)", "operator<=>"),
        ("ns::P::operator bool() const", "operator bool"),
        ("ns::P::operator std::vector<int, A<(1>0)> >*() const", None),
        ("ns::functor::operator()(int) const", "functor::operator()"),
        ("void ns::functor<int>::operator()<float>(float) const", "functor::operator()"),
        ("operator new(unsigned long)", "operator new"),
        ("operator delete[](void*)", "operator delete[]"),
        ("main::{lambda(int)#2}::operator()(int) const", "main::{lambda#2}"),
        ("run(int)::{lambda(float*)#1}::operator()(float*) const", "run::{lambda#1}"),
        ("auto ns::go<int>(int)::{lambda(auto:1)#3}::operator()<float>(float) const", "go::{lambda#3}"),
        ("{lambda(int)#1}::operator()(int) const", "{lambda#1}"),
        ("ns::T::~T()", "~T"),
        ("ns::get[abi:cxx11](int)", "get"),
        ("work(int) [clone .isra.0]", "work"),
        ("decltype (f(a, b)) ns::sum<int>(int)", "sum"),
        ("decltype(auto) ns::sum<int>(int)", "sum"),
        ("void (*ns::handler<int>(int))(char)", "handler"),
        ("std::vector<int>::iterator ns::first(std::vector<int>&)", "first"),
        ("unsigned long const& ns::larger<(a<b), (c->d)>(int)", "larger"),
        ("non-virtual thunk to ns::T::run(int)", "run"),
        ("(anonymous namespace)::local_kernel(int*)", "local_kernel"),
        ("libfoo.so+0x1a2b", "libfoo.so+0x1a2b"),
        ("[anonymous]+0x10", "[anonymous]+0x10"),
        ("my program (2)+0x10", "my program (2)+0x10"),
        ("internal/abi.(*RegArgs).Dump", None),  # Go: whatever, but not empty
        ("", ""),
        # Still mangled: too long, or no libstdc++.
        ("_ZN5flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsEEvv", "flash_fwd_kernel"),
        ("_ZL26__device_stub__Z4axpyfPfS_fPfS_", "axpy"),
        ("_ZlsRSoi", "_ZlsRSoi"),
    ],
)
def test_short_names(full: str, short: str | None) -> None:
    if short is None:
        assert short_name(full)
    else:
        assert short_name(full) == short


def test_names_of_a_real_compiler(tmp_path_factory: pytest.TempPathFactory) -> None:
    source = """
        namespace app { namespace {
          template <typename T, int N> __attribute__((noinline)) void scale_kernel(T* p, T (*f)(T)) { p[N] = f(p[N]); }
        } template <typename F> __attribute__((noinline)) void apply(F f) { f(1); } }
        float twice(float x) { return 2 * x; }
        volatile int sink;
        int main() { float v[4] = {1}; app::scale_kernel<float, 3>(v, twice);
                     app::apply([](int x) { sink = x; }); return v[3]; }
    """
    program = compile_c(tmp_path_factory.mktemp("cc"), "names", source, "-O0", with_compiler="g++")
    elf = ElfImage(program.read_bytes())
    names = set()
    for offset in range(0, len(program.read_bytes())):
        symbol = elf.symbol_at(offset)
        if symbol is not None:
            names.add(short_name(demangle(symbol.name)))
    assert {"scale_kernel", "apply", "twice", "main", "main::{lambda#1}"} <= names


def test_the_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0


def exponential_name(levels: int) -> str:
    """Each parameter is a function type of two of the one before: 2 ** levels words."""

    def reference(number: int) -> str:
        digits = ""
        while number:
            number, digit = divmod(number - 1 if not digits else number, 36)
            digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
            if not number:
                break
        return f"S{digits}_"

    parts = ["_Z1f1a"]
    for level in range(levels):
        part = reference(2 * level)
        parts.append(f"PFv{part}{part}E")
    return "".join(parts)


def test_a_name_that_stands_for_terabytes_stays_mangled() -> None:
    assert len(demangle(exponential_name(8))) > 2000
    for levels in (30, 60, 200):
        assert demangle(exponential_name(levels)) == exponential_name(levels)[:MAX_NAME_LENGTH]
    nested = "_Z1fIJ" + "i" * 1500 + "EEvDpPFv1X" + "S_" * 200 + "T_E"
    assert len(demangle(nested)) <= MAX_NAME_LENGTH


def test_long_names_are_cut_not_taken_apart() -> None:
    assert demangle("_Z5000" + "a" * 5000 + "v") == ("_Z5000" + "a" * 5000)[:MAX_NAME_LENGTH]
    assert len(short_name("void " + "f" * 9000 + "(int)")) <= MAX_NAME_LENGTH


def test_names_stay_mangled_without_libstdcxx(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise OSError("libstdc++.so.6: cannot open shared object file")

    monkeypatch.setattr(cxxfilt, "Demangler", missing)
    monkeypatch.setattr(cxxfilt, "demangle", missing)
    module._demangler.cache_clear()
    try:
        assert demangle("_Z4axpyfPfS_") == "_Z4axpyfPfS_"
        assert short_name(demangle("_Z4axpyfPfS_")) == "axpy"
        assert short_name(demangle("__device_stub__Z4axpyfPfS_")) == "axpy"
    finally:
        module._demangler.cache_clear()


@given(st.text(alphabet="ab:<>()[]{}*& ,#->o_~'0", max_size=80) | st.text(max_size=60))
def test_any_text_has_a_short_name(text: str) -> None:
    short = short_name(text)
    assert bool(short) == bool(text) and len(short) <= max(MAX_NAME_LENGTH, 1)


@given(st.text(alphabet="_ZNKSLITEPRFvijf0123456789abDpJXU", max_size=60).map(lambda text: "_Z" + text))
def test_any_mangled_text_is_survived(text: str) -> None:
    assert demangle(text)
    assert short_name(text)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("__nv_static_25__f05f2698_4_k_cu_c1bc4f3f__Z5quietPd", "quiet(double*)"),
        (
            "__nv_static_25__f05f2698_4_k_cu_c1bc4f3f__ZN1m36_GLOBAL__N__f05f2698_4_k_cu_c1bc4f3f6hiddenEPi",
            "m::(anonymous namespace)::hidden(int*)",
        ),
        ("__nv_static_25__f05f2698_4_k_cu_c1bc4f3f_plain", "plain"),
        ("__nv_static_9999_x", "__nv_static_9999_x"),
        ("__nv_static_", "__nv_static_"),
    ],
)
def test_static_kernels_of_relocatable_device_code_lose_their_prefix(name: str, full: str) -> None:
    assert demangle(name) == full


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("triton_poi_fused_add_mul_0", "triton_poi_fused_add_mul_0"),
        ("kernel_0d1d2d3de4de", "kernel_0d1d2d3de4de"),
        (
            "cutlass_80_tensorop_f16_s16816gemm_f16_256x128_32x3_nn_align8",
            "cutlass_80_tensorop_f16_s16816gemm_f16_256x128_32x3_nn_align8",
        ),
        ("void cutlass::Kernel2<cutlass_80_gemm_align8>(cutlass_80_gemm_align8::Params)", "Kernel2"),
        ("void ew<108, l8(float*)::{lambda(float)#2}>(l8(float*)::{lambda(float)#2}, float*)", "ew"),
        ("main::foo(int)+0x1d", "main::foo(int)+0x1d"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFu…", "vectorized_elementwise_kernel"),
    ],
)
def test_kernels_as_frameworks_name_them_have_short_names(full: str, short: str) -> None:
    assert short_name(full) == short
