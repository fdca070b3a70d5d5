"""`tl.extra.libdevice`: NVIDIA's device library, made of the language's own functions."""
