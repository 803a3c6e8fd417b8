"""`GET /`: the status as a page of a browser.

- `nodes`: a tree of elements, as HTML and as JSON.
- `alarms`: what is wrong, and what to do.
- `sections`: the content as trees of elements.
- `page`: the answers, put together from `assets`: the frame of the page, its style sheet and its script.
"""

from declctl.admin.page.page import page

__all__ = ["page"]
