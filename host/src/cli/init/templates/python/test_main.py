from syncline_sdk.testing import Host

from main import @@models@@

LINE = "GET @@list@@@@query_line@@"


def test_every_page_is_saved() -> None:
    newest = @@second@@
    oldest = @@first@@
    with Host() as host:
        host.answer(LINE, 200, [newest], headers={"link": '</next>; rel="next"'})
        host.answer("GET /next", 200, [oldest])
        host.call(@@models@@)
        assert len(host.records("@@Model@@")) == 2
        assert host.checkpoint == {"cursor": newest["updated_at"]}
