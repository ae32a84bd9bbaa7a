"""How the documentation is built: ``make docs``."""

from toolnexus._version import __version__

project = "toolnexus"
author = "toolnexus contributors"
copyright = "2026, toolnexus contributors"  # noqa: A001 - Sphinx wants this name
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]

exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# `Name` in a docstring is a link where there is something to link to.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"toolnexus {release}"
html_show_sphinx = False
