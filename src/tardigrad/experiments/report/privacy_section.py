"""A privacy statement as HTML: Markdown without raw HTML, links and images."""

from __future__ import annotations

from markdown_it import MarkdownIt

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "link", "autolink"])


def as_html(markdown: str) -> str:
    """Return Markdown as HTML. Headings become `h4`, and tables can be scrolled; HTML in the text is escaped.

    >>> as_html("- **a** < b")
    '<ul>\\n<li><strong>a</strong> &lt; b</li>\\n</ul>\\n'
    """
    tokens = _MARKDOWN.parse(markdown)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "h4"
        elif token.type == "table_open":
            token.attrSet("class", "words")
    text = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    return text.replace("<table", "<div class='wide'><table").replace("</table>", "</table></div>")
