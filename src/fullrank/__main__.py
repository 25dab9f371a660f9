"""`python -m fullrank` is the command line."""

from fullrank.cli.app import main

main()
