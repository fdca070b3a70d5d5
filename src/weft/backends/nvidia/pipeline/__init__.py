"""Warp specialization, software pipelining, TMA and cp.async staging, epilogue overlap, multicast."""
