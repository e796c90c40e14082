"""Files of variables and folders of outputs. Reading is limited in size, and a file is written whole or not at all."""
