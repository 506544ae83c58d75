"""`python -m ricnet` is `ric`."""

from ricnet.apps.cli import main

if __name__ == "__main__":
    main()
