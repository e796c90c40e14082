"""The version of Fluid whose interface this is."""

full_version = "1.8.5"
major, minor, patch, rc = "1", "8", "5", "0"
istaged = True
commit = "8e1712a71057e3ca06a2927ceec51c18cb171fdc"
