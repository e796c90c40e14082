"""How runs of scripts are fed, and what steers them."""
