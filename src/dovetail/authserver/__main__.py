"""Command `python -m dovetail.authserver hash`: prints the text for a password in a file of users."""

import getpass
import sys

from dovetail.authserver.passwords import hash_password
from dovetail.errors import SetupError

USAGE = "usage: python -m dovetail.authserver hash    (asks for a password, or reads one line from a pipe)"


def main(arguments: list[str]) -> int:
    if arguments != ["hash"]:
        sys.stderr.write(USAGE + "\n")
        return 2
    password = getpass.getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    try:
        sys.stdout.write(hash_password(password) + "\n")
    except SetupError as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
