"""What people touch: the command (`cli`, a file per verb), the language server (`lsp`) and the pages (`report`).

Nothing else imports this wing. Read `cli/__init__.py` first: it names every verb.
"""
