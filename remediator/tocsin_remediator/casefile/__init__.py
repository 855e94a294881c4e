"""
The case file: what is claimed, and how anybody can check it.

`collect` asks Prometheus and makes plain JSON, `render` turns that into HTML and Markdown.
"""
