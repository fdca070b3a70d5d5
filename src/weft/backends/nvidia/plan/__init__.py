"""Plan → plan for a GPU: horizontal fusion, fusion of small kernels, deduplication."""
