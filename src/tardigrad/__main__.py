"""`python -m tardigrad` is the `tardigrad` command."""

from tardigrad.cli import main

if __name__ == "__main__":
    main()
