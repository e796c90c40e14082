"""Files of variables, folders of outputs, and users' Python files: read within limits, written whole or not at all."""
