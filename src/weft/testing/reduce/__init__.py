"""Programs that fail, made small: what `weft reduce` does."""
