"""A fake provider with installable apps. No such server is available to others, so this one implements the documented
protocol, and verifies tokens with PyJWT.

    python apps.py PORT PUBLIC_KEY_FILE HOST

The app 4242 has two installations: 77, which is the last in the user's long list, and 78, which belongs to another
user. The app's page redirects to HOST, the callback of an installed app. A page with `setup_action=request` leaves the
installation to its owner. The user's company is 7. Requests about company 9 get a 503.
"""
import json
import secrets
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit
from datetime import datetime, timedelta, timezone

import jwt

PORT, PUBLIC_KEY, HOST = int(sys.argv[1]), open(sys.argv[2]).read(), sys.argv[3]
APP, INSTALLATIONS, CODE = "4242", ["77", "78"], "planted-code"
USERS = [*range(1000, 1100), 77]
TOKENS = set()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if path.startswith("/apps/"):
            back = {"state": query["state"][0], "installation_id": INSTALLATIONS[0], "setup_action": "install"}
            if path.startswith("/apps/owned/"):
                back = {"state": query["state"][0], "setup_action": "request"}
            route = "/app-auth/connect"
            if path.startswith("/apps/consent/"):
                back["code"], route = CODE, "/oauth/callback"
            self.send(302, {}, {"Location": f"{HOST}{route}?{urlencode(back)}"})
        elif path == "/authorize":
            back = {"state": query["state"][0], "code": CODE, "realmId": "7"}
            self.send(302, {}, {"Location": f"{HOST}/oauth/callback?{urlencode(back)}"})
        elif path == "/user/installations":
            first = (int(query["page"][0]) - 1) * int(query["per_page"][0])
            listed = [{"id": id} for id in USERS[first:first + int(query["per_page"][0])]]
            self.send(200 if bearer == "user-token" else 401, {"total_count": len(USERS), "installations": listed})
        elif path.startswith("/company/"):
            status = {"/company/7": 200, "/company/9": 503}.get(path, 403)
            self.send(status if bearer == "user-token" else 401, {})
        elif path == "/installation/repositories":
            self.send(200 if bearer in TOKENS else 401, {"total_count": 1})
        else:
            self.send(404, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if self.path in [f"/app/installations/{id}/access_tokens" for id in INSTALLATIONS]:
            self.give_installation_token()
        elif self.path == "/login/oauth/access_token":
            form = {name: values[0] for name, values in parse_qs(body).items()}
            known = (form.get("client_id"), form.get("client_secret"), form.get("code"))
            if known == ("client", "planted-client-secret", CODE):
                self.send(200, {"access_token": "user-token", "token_type": "bearer"})
            else:
                self.send(200, {"error": "bad_verification_code"})
        else:
            self.send(404, {"message": "Not Found"})

    def give_installation_token(self):
        try:
            token = self.headers["Authorization"].removeprefix("Bearer ")
            claims = jwt.decode(token, PUBLIC_KEY, algorithms=["RS256"], options={"require": ["iat", "exp", "iss"]})
            assert claims["iss"] == APP and claims["exp"] - claims["iat"] <= 600
        except Exception as problem:
            self.send(401, {"message": f"A JSON web token could not be decoded: {problem}"})
            return
        made = f"installation-{secrets.token_hex(8)}"
        TOKENS.add(made)
        expires_at = datetime.now(timezone.utc) + timedelta(hours=1)
        self.send(201, {"token": made, "expires_at": expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")})

    def send(self, status, body, headers={}):
        body = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
