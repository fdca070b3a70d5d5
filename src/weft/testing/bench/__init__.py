"""Benchmarks: cases, contenders, clocks and charts."""
