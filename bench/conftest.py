"""Programs of other environments cannot be imported in this one."""

collect_ignore_glob = ["flower_*.py", "with_*.py"]
