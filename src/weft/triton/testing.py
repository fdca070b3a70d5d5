"""Triton's names for measuring and comparing."""

from weft.frontends.triton.tuning.do_bench import assert_close as assert_close
from weft.frontends.triton.tuning.do_bench import do_bench as do_bench
from weft.frontends.triton.tuning.do_bench import do_bench_cudagraph as do_bench_cudagraph
from weft.frontends.triton.tuning.peak_figures import get_dram_gbps as get_dram_gbps
from weft.frontends.triton.tuning.peak_figures import get_max_simd_tflops as get_max_simd_tflops
from weft.frontends.triton.tuning.peak_figures import get_max_tensorcore_tflops as get_max_tensorcore_tflops
from weft.frontends.triton.tuning.peak_figures import nvsmi as nvsmi
from weft.testing.bench.perf_report import Benchmark as Benchmark
from weft.testing.bench.perf_report import Mark as Mark
from weft.testing.bench.perf_report import perf_report as perf_report
