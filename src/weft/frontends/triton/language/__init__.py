"""`tl`: types, values, and the functions of Triton's language."""
