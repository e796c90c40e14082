"""What a program is: frozen values, types, attributes, diagnostics and the textual form."""
