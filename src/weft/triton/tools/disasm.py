"""`triton.tools.disasm`: the instructions of a kernel for a GPU, where NVIDIA's disassembler is installed."""

from weft.frontends.triton.listings.instructions import extract as extract
from weft.frontends.triton.listings.instructions import get_sass as get_sass
