"""One file per command of `ric`; each has a `main(arguments)`."""
