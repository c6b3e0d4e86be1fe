"""Lists that the provider returns in pages, for all common kinds of paging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from . import _json, log, run
from ._typed import Mismatch, read
from .error import Error

if TYPE_CHECKING:
    from .http import Request, Response

T = TypeVar("T")


@dataclass(frozen=True)
class Paging:
    """The kind of paging of a list, and the place of the items in a response.

    Places are JSON pointers: `/data` is the key `data`, `/meta/next` is the key `next` in `meta`, and the empty text
    is the whole response.
    """

    step: Literal["link", "cursor", "last id", "keyset", "offset", "page number"]
    parameters: tuple[tuple[str, str], ...]
    """Name of each parameter of the next page, and the place of its value."""
    items: str
    more: str | None
    position: str | None
    id: str = "/id"
    """The place of an item's id."""
    in_body: bool = False
    """Whether the parameters are members of the request's JSON body, and not of its query."""
    lacks_place: bool = False
    """Whether the provider leaves out the place of the cursor if there is only one page."""

    @classmethod
    def link(cls, *, items: str = "", more: str | None = None) -> Paging:
        """The response's header `Link` contains the next page with `rel="next"`."""
        return cls("link", (), items, more, None)

    @classmethod
    def cursor(
        cls, place: str, parameter: str, *, items: str = "", more: str | None = None, in_body: bool = False
    ) -> Paging:
        """The response contains a cursor at `place`, which is sent as the query parameter `parameter`.

        With `in_body`, it is sent as a member of the request's JSON body.
        """
        return cls("cursor", ((parameter, place),), items, more, None, in_body=in_body)

    @classmethod
    def last_id(cls, parameter: str, *, id: str = "/id", items: str = "", more: str | None = None) -> Paging:
        """The id of the last item, at the place `id` in the item, is sent as the query parameter `parameter`."""
        return cls("last id", ((parameter, id),), items, more, None)

    @classmethod
    def keyset(
        cls,
        place: str,
        parameter: str,
        *,
        id: str = "/id",
        id_parameter: str | None = None,
        items: str = "",
        more: str | None = None,
    ) -> Paging:
        """The list is sorted by the value at `place` in each item, such as `/updated_at`.

        The last item's value is sent as the query parameter `parameter`.

        With `id_parameter`, the last item's id is sent as well, and the provider continues after that item. Without it,
        the next page begins with the items that have this value, and the items that an earlier page contained are
        dropped; their ids, at the place `id`, tell them apart. Such a list cannot be read if more items share a value
        than a page holds: the error is `pagination-loop`.
        """
        parameters = ((parameter, place),) if id_parameter is None else ((parameter, place), (id_parameter, id))
        return cls("keyset", parameters, items, more, None, id)

    @classmethod
    def offset(cls, parameter: str, *, items: str = "", more: str | None = None) -> Paging:
        """The query parameter `parameter` is the number of items to skip."""
        return cls("offset", ((parameter, ""),), items, more, None)

    @classmethod
    def page_number(cls, parameter: str, *, items: str = "", more: str | None = None) -> Paging:
        """The query parameter `parameter` is the number of the page, from 1."""
        return cls("page number", ((parameter, ""),), items, more, None)

    def start(self, position: str | None) -> Paging:
        """Begins at a `Page.next` of an earlier run. `None` is the start of the list."""
        return replace(self, position=position)

    def may_lack_place(self) -> Paging:
        """The provider leaves out the place of the cursor if there is only one page.

        Otherwise, such a first page is suspicious: a wrong place would end every list after its first page. The
        function gets a warning in its log or, in a full run, the error `pagination-place-missing`.
        """
        return replace(self, lacks_place=True)


class Page(Sequence[T], Generic[T]):
    """A page of a list: a sequence of its items."""

    def __init__(self, items: list[T], next: str | None) -> None:
        self.items = items
        self.next = next
        """The argument of `Paging.start` that continues after this page. `None` on the last page."""

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __repr__(self) -> str:
        return f"Page({self.items!r}, next={self.next!r})"


def pages(request: Request, paging: Paging, item: Any) -> Iterator[Page[Any]]:
    """Returns the pages until a page without a next one, or until an empty page.

    Raises `pagination-loop` if the provider's pages form a loop.
    """
    request = request.copy()
    counter = 1 if paging.step == "page number" else 0
    followed: set[str] = set()
    previous: list[Any] | None = None
    repeated = _Repeated()
    if paging.position is not None:
        followed.add(paging.position)
        counter = _follow(request, paging, paging.position)
    while True:
        response = request.send_ok()
        body = _body(response)
        raw = _items(response, body, paging)
        if not raw:
            return
        if paging.step in ("offset", "page number"):
            # A counter never repeats. A provider that ignores it returns the same page again.
            if raw == previous:
                raise _loop(request, followed, "returned the same page twice")
            previous = raw
        next = None if _is_last(body, paging) else _next(response, body, raw, paging, counter)
        if next is None and not followed:
            _warn_about_missing_place(request, body, paging)
        may_repeat = paging.step == "keyset" and len(paging.parameters) == 1
        if may_repeat:
            raw = repeated.drop(request, response, raw, paging, followed)
            if not raw:
                return
        yield Page(_convert(response, raw, item), next)
        if next is None:
            return
        if next in followed and not may_repeat:
            raise _loop(request, followed, f"points to `{next}` a second time")
        followed.add(next)
        counter = _follow(request, paging, next)


def _body(response: Response) -> Any:
    try:
        return _json.loads(response.body)
    except ValueError as problem:
        raise response.unexpected(str(problem)) from None


def _items(response: Response, body: Any, paging: Paging) -> list[Any]:
    found = find(body, paging.items)
    if not isinstance(found, list):
        raise response.unexpected(f"expected an array at `{paging.items}`")
    return found


def _convert(response: Response, raw: list[Any], item: Any) -> list[Any]:
    items = []
    for index, value in enumerate(raw):
        try:
            items.append(read(item, value))
        except Mismatch as mismatch:
            id = value.get("id") if isinstance(value, dict) else None
            which = f"item {index}" if id is None else f"item {index} with the id `{id}`"
            raise response.unexpected(f"{which} of the page: {mismatch}") from None
    return items


def _is_last(body: Any, paging: Paging) -> bool:
    return paging.more is not None and find(body, paging.more) is False


def _next(response: Response, body: Any, raw: list[Any], paging: Paging, counter: int) -> str | None:
    match paging.step:
        case "link":
            return next_link(response.headers)
        case "cursor":
            return _text(response, body, paging.parameters[0][1])
        case "last id" | "keyset":
            values = []
            for _, place in paging.parameters:
                value = _text(response, raw[-1], place)
                if value is None:
                    raise response.unexpected(f"the last item of the page has no value at `{place}`")
                values.append(value)
            return values[0] if len(values) == 1 else _json.dumps(values)
        case "offset":
            return str(counter + len(raw))
        case "page number":
            return str(counter + 1)


def _follow(request: Request, paging: Paging, next: str) -> int:
    """Changes the request to the next page. Returns the counter of numbered pages."""
    if paging.step == "link":
        request.url = next
        request.query = []
    elif len(paging.parameters) > 1:
        for (name, _), value in zip(paging.parameters, _value_and_id(next), strict=True):
            request.set_query(name, value)
    elif paging.in_body:
        request.set_member(paging.parameters[0][0], next)
    else:
        request.set_query(paging.parameters[0][0], next)
    if paging.step in ("offset", "page number"):
        if not next.isascii() or not next.isdigit():
            raise Error("invalid-paging", f"the start of the list must be a number (got `{next}`)")
        return int(next)
    return 0


def _value_and_id(position: str) -> tuple[str, str]:
    """Parses the position of a keyset with an id parameter."""
    try:
        value, id = read(list[str], _json.loads(position))
        return value, id
    except ValueError:
        message = f"the start of the list must be a JSON array of the last item's value and id (got `{position}`)"
        raise Error("invalid-paging", message) from None


class _Repeated:
    """The items that the next page of a keyset may repeat."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.longest_page = 0

    def drop(
        self, request: Request, response: Response, raw: list[Any], paging: Paging, followed: set[str]
    ) -> list[Any]:
        """Drops the items that earlier pages contained. A page without any other items is the last one."""
        place = paging.parameters[0][1]
        self.longest_page = max(self.longest_page, len(raw))
        ids = [_text(response, item, paging.id) for item in raw]
        values = [_text(response, item, place) for item in raw]
        for of_item, missing in ((ids, paging.id), (values, place)):
            if None in of_item:
                raise response.unexpected(f"an item of the page has no value at `{missing}`")
        fresh = [item for item, id in zip(raw, ids, strict=True) if id not in self.ids]
        # The rest of the list may begin behind a page of repeated items that is as long as pages get.
        if not fresh and len(raw) > 1 and len(raw) >= self.longest_page:
            raise _loop(request, followed, f"returned a whole page with the same `{place}`; request longer pages")
        pairs = zip(ids, values, strict=True)
        self.ids = {str(id) for id, value in pairs if value == values[-1] or id in self.ids}
        return fresh


def _warn_about_missing_place(request: Request, body: Any, paging: Paging) -> None:
    """A wrong pointer would silently end the list after the first page."""
    if paging.step != "cursor" or paging.lacks_place or exists(body, paging.parameters[0][1]):
        return
    if paging.more is not None and find(body, paging.more) is False:
        return
    message = (
        f"the first page of {request.target} has no value at `{paging.parameters[0][1]}`, so the list may end too "
        "early; correct the place, or call `may_lack_place` if the provider leaves it out"
    )
    if run.is_full():
        raise Error("pagination-place-missing", message)
    log.warn(message)


def _loop(request: Request, followed: set[str], how: str) -> Error:
    message = f"{request.target} {how} after {len(followed)} pages, so the list would never end"
    return Error("pagination-loop", message)


def _text(response: Response, value: Any, place: str) -> str | None:
    """Returns the string or number at a place. `null` and the empty string count as absent."""
    found = find(value, place)
    if found is None or found == "":
        return None
    if isinstance(found, bool) or not isinstance(found, (str, int, float)):
        raise response.unexpected(f"the value at `{place}` is neither a string nor a number")
    return str(found)


_ABSENT = object()


def find(value: Any, place: str) -> Any:
    """Returns the value at a JSON pointer (RFC 6901), or `None` if there is no value."""
    found = _find(value, place)
    return None if found is _ABSENT else found


def exists(value: Any, place: str) -> bool:
    """Returns whether there is a value at a JSON pointer. `null` is a value."""
    return _find(value, place) is not _ABSENT


def _find(value: Any, place: str) -> Any:
    first, *segments = place.split("/")
    if first:
        raise Error(
            "invalid-paging",
            f"`{place}` is not a JSON pointer; a pointer is empty or starts with a slash, as in `/data`",
        )
    for segment in segments:
        name = segment.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _ABSENT
    return value


def next_link(headers: list[tuple[str, str]]) -> str | None:
    """Returns the target of the first link with the relation `next` (RFC 8288)."""
    for name, value in headers:
        if name.lower() == "link":
            target = _next_of(value)
            if target is not None:
                return target
    return None


def _next_of(value: str) -> str | None:
    """A comma separates links, but it can also occur in a target or in a quoted string."""
    while True:
        _, opened, rest = value.partition("<")
        target, closed, rest = rest.partition(">")
        if not opened or not closed:
            return None
        parameters, value = _split_unquoted(rest, ",")
        while parameters:
            parameter, parameters = _split_unquoted(parameters, ";")
            if _is_next(parameter):
                return target


def _split_unquoted(text: str, separator: str) -> tuple[str, str]:
    quoted = escaped = False
    for index, character in enumerate(text):
        if character == '"' and not escaped:
            quoted = not quoted
        escaped = quoted and not escaped and character == "\\"
        if character == separator and not quoted:
            return text[:index], text[index + 1 :]
    return text, ""


def _is_next(parameter: str) -> bool:
    name, equals, value = parameter.partition("=")
    return bool(equals) and name.strip().lower() == "rel" and "next" in value.strip().strip('"').lower().split()
