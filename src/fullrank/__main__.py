"""The entry point of the command line, also as `python -m fullrank`."""

import contextlib
import os
import sys


def main() -> None:
    """Run the command line of this process; the version is printed without importing torch."""
    if sys.argv[1:] == ["--version"]:
        from fullrank._version import __version__

        with contextlib.suppress(OSError, AttributeError):  # the command below says why nothing can be written
            os.write(sys.stdout.fileno(), f"fullrank {__version__}\n".encode())
            return
    from fullrank.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
