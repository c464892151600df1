"""One file per command of the command line: its arguments, and what it prints."""
