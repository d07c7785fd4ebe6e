"""Formulas: LaTeX between dollar signs becomes MathML, which browsers draw without a script or a request.

Pages write `$x$` within a line and `$$ ... $$` as a paragraph, as code hosts do, so they stay readable as plain text.
"""

import html
import logging
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

try:
    from latex2mathml.converter import convert
except ModuleNotFoundError as error:
    raise PluginError("the site needs the extra docs: pip install 'fedlane[docs]'") from error

log = logging.getLogger("mkdocs.hooks.fedlane")  # a warning here fails a strict build

MARKED = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
"""A formula as the extension `pymdownx.arithmatex` marks it in HTML."""
_NAMES = "exp|ln|log|max|min"
_THIN = '<mspace width="0.167em"></mspace>'
FUNCTION = re.compile(rf"<m[io]>({_NAMES})</m[io]>")
AFTER_FACTOR = re.compile(
    rf"(</m[in]>|</ms(?:ub|up|ubsup|qrt)>|</mfrac>|&#x00029;</mo>)(?=(?:<msub>)?<mi>(?:{_NAMES})</mi>)"
)
BEFORE_ARGUMENT = re.compile(
    rf"(<mi>(?:{_NAMES})</mi>|<msub><mi>(?:{_NAMES})</mi>(?:<m[in]>[^<]*</m[in]>|<mrow>.*?</mrow>)</msub>)"
    rf"(?=<m(?!o|space)|<mo>&#x0007C;)"
)
"""Where LaTeX sets a thin space: between a factor and the name of a function, and between the name and its argument."""
SIGN = re.compile(r"((?:&#x0003D;|&#x00028;|&#x0005B;|&#x0002C;|[=(\[,])</mo>)<mo>(&#x02212;|&#x0002B;)</mo>")
"""A plus or minus that is a sign: it follows a relation, an opening bracket or a comma."""


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the formulas of a page."""

    def formula(match: re.Match[str]) -> str:
        try:
            return mathml(html.unescape(match[2]).strip(), display=match[1] == "div")
        except ValueError as error:
            log.warning(f"{page.file.src_uri}: {error}")
            return match[0]

    return MARKED.sub(formula, content)


def mathml(latex: str, *, display: bool = False) -> str:
    """Return a formula as MathML; raise ValueError for LaTeX that cannot be converted."""
    try:
        result = convert(latex, display="block" if display else "inline")
    except Exception as error:  # the converter raises exceptions of many kinds
        raise ValueError(f"formula {latex}: {type(error).__name__}") from error
    if "\\" in result:
        raise ValueError(f"formula {latex}: unknown command")
    result = FUNCTION.sub(r"<mi>\1</mi>", result)  # as an operator, its name would have spaces on both sides
    result = BEFORE_ARGUMENT.sub(rf"\1{_THIN}", AFTER_FACTOR.sub(rf"\1{_THIN}", result))
    result = result.replace("<mo>&#x0002E;</mo>", "<mi>.</mi>")  # a full stop has no space before it
    result = result.replace("<mo>&#x0007C;</mo>", '<mo stretchy="false" lspace="0" rspace="0">&#x0007C;</mo>')
    result = SIGN.sub(r'\1<mo form="prefix">\2</mo>', result)
    result = re.sub(r"<mo>(&#x0221E;|&#x02026;)</mo>", r"<mi>\1</mi>", result)  # infinity, an ellipsis
    result = re.sub(r"<mi>(&#x0230[89];|&#x0230[AB];)</mi>", r'<mo stretchy="false">\1</mo>', result)
    return result.replace("<math ", f'<math alttext="{html.escape(latex)}" ', 1)
