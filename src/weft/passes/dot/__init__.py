"""Matmuls in graphs: split, summed, scaled, aligned, grouped."""
