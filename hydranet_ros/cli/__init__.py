"""The `hydranet` command: one file per subcommand."""
