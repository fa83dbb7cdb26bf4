"""The command `prep`, as installed with the wheel: the same one as the native program's."""

import signal
import sys


def main() -> int:
    """Runs the command of `sys.argv` and gives its exit code."""
    from prep import _core

    # The command has no Python to interrupt: Ctrl-C goes to its own handlers, or ends the process.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.command(["prep", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
