"""The `dovetail` command. Its parts are loaded when they are needed, so that `--help` is quick."""
