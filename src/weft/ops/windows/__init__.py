"""Ops over neighbourhoods along the last dimensions: convolution, pooling, resizing, sampling."""
