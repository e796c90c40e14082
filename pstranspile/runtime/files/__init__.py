"""Files of variables and folders of outputs: read within limits, written whole or not at all."""
