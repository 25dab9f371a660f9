"""`python -m fullrank` is the command line."""

from .cli import main

main()
