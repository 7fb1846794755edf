"""The command `hayakuchi`, and `python -m hayakuchi`. Light, since it may begin the process anew."""

import sys

from hayakuchi.runtime import quiet_xla, restart_with_huge_pages


def main() -> int:
    quiet_xla()
    restart_with_huge_pages(sys.argv[1] if len(sys.argv) > 1 else "")
    from hayakuchi import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
