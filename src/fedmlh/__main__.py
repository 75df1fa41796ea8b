"""`python -m fedmlh` is the command line."""

from fedmlh.cli import main

# Worker processes import this module as well.
if __name__ == "__main__":
    main()
