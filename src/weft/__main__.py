"""`python -m weft`: the command line, where the script `weft` is not installed."""

from weft.tools.cli import main

main()
