"""Random programs, their judges, and what shrinks those that fail: `weft fuzz` drives them.

A kind of program has a module that draws one from a seed (`torch_programs`, `module_programs`, `graph_programs`,
`triton_programs`, `nnsmith_models`) and one that judges it (`torch_judge` and so on). A program is text, so that it
travels between processes, shrinks line by line (`shrink`) and is kept as a script that stands alone.
"""
