"""What runs in another environment is no module of this one."""

collect_ignore = ["flower_in_double.py"]
