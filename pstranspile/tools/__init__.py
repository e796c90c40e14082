"""What people touch: the command (`cli`, a file per verb), the language server (`lsp`) and the pages (`report`).

Other wings use nothing of this one; the command of the package is `cli`. Read `cli/__init__.py` first: it names every
verb.
"""
