"""`python -m fedmlh` is the command line."""

from fedmlh.cli import main

main()
