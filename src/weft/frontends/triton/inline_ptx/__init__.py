"""PTX inside kernels (`tl.inline_asm_elementwise`), as the language's own operations: so it runs on any target."""
