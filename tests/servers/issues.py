"""The part of GitHub's REST API that a new project of `syncline init` uses: the issues of one repository.

    python3 tests/servers/issues.py PORT [NUMBER]

Creates NUMBER issues (default: 250), ten minutes apart. `POST /issues` with a JSON object adds one.
"""

import json
import sys
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

LIST = "/repos/pallets/markupsafe/issues"
START = datetime(2026, 1, 1, tzinfo=UTC)

issues: list[dict] = []


def add(title: str) -> dict:
    number = len(issues) + 1
    updated_at = (START + timedelta(minutes=10 * number)).strftime("%Y-%m-%dT%H:%M:%SZ")
    issue = {
        "id": 1000 + number,
        "number": number,
        "title": title,
        "state": "open" if number % 2 else "closed",
        "updated_at": updated_at,
        "comments": 0,
    }
    issues.append(issue)
    return issue


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == LIST:
            self.answer_list({name: values[0] for name, values in parse_qs(url.query).items()})
            return
        number = url.path.removeprefix(f"{LIST}/")
        found = [issue for issue in issues if str(issue["number"]) == number]
        if found:
            self.answer(200, found[0])
        else:
            self.answer(404, {"message": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.answer(201, add(body["title"]))

    def answer_list(self, query: dict[str, str]) -> None:
        found = [issue for issue in issues if issue["updated_at"] >= query.get("since", "")]
        found.sort(key=lambda issue: issue["updated_at"], reverse=query.get("direction") != "asc")
        size, page = int(query.get("per_page", 30)), int(query.get("page", 1))
        links = {}
        if len(found) > page * size:
            others = "&".join(f"{name}={value}" for name, value in query.items() if name != "page")
            links["Link"] = f'<http://{self.headers["host"]}{LIST}?{others}&page={page + 1}>; rel="next"'
        self.answer(200, found[(page - 1) * size : page * size], links)

    def answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, flush=True)


for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 250):
    add(f"Issue {number + 1}")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
