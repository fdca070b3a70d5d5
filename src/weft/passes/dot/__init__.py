"""Matrix products in graphs: split, summed, scaled, aligned, grouped."""
