"""`python -m declctl`: the same as the command `declctl`."""

from declctl.cli import main

if __name__ == "__main__":
    main()
