"""Attention in graphs: recognised, its masks read, its heads packed, its pages read where they lie."""
