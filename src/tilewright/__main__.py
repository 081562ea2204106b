"""`python -m tilewright`: the command line."""

from tilewright.cli.start import main

main()
