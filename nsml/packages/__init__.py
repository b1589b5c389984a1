"""Which Python packages a code folder asks for, by one rule for whoever sends it and whoever installs them."""
