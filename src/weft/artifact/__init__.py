"""Artifacts: a compiled model as one file, which `weft.load` and `weft run` need no framework and no compiler for.

    write    a graph and its weights → model.weft: manifest, IR, weights, code for one or several targets
    read     model.weft → a callable; nothing in the file is believed before it is checked
    trust    whose machine code may run: this user's on this machine, a listed key's, or a caller's say-so

What `read` needs to run trusted code imports neither xDSL nor llvmlite; an import contract keeps it so.
"""
