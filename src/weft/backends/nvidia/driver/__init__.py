"""The CUDA driver: modules, launches, tensor maps, and NVIDIA's tools where they are installed."""
