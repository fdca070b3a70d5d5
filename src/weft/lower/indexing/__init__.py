"""Scans, scatters and sorts → tile kernels."""
