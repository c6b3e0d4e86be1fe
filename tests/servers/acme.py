"""A fake provider for typed credentials, because no real one runs on a developer's machine.

It verifies credentials with third-party libraries: OAuth 1 signatures and the client credentials grant with oauthlib,
JSON Web Tokens with PyJWT. Only the UsernameToken of WS-Security is computed here, as its profile specifies.
Every signature and every nonce is valid for one request. The argument is the port. Prints one line per request.
"""

import base64
import hashlib
import json
import re
import secrets
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import jwt
from oauthlib.oauth1 import (
    SIGNATURE_HMAC_SHA1,
    SIGNATURE_HMAC_SHA256,
    SIGNATURE_PLAINTEXT,
    RequestValidator,
    ResourceEndpoint,
)
from oauthlib.oauth2 import BackendApplicationServer
from oauthlib.oauth2 import RequestValidator as OAuth2Validator

PIN = "planted-pin-6021"
SECRET = "planted-secret-6021"
JWT_KEY = bytes.fromhex("00112233445566778899aabbccddeeff" * 2)

tokens = set()
seen_nonces = set()


class Signatures(RequestValidator):
    enforce_ssl = False
    allowed_signature_methods = [SIGNATURE_HMAC_SHA1, SIGNATURE_HMAC_SHA256, SIGNATURE_PLAINTEXT]
    client_key_length = access_token_length = (3, 60)
    nonce_length = (8, 60)
    safe_characters = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    dummy_client = dummy_access_token = "nobody"

    def check_client_key(self, key):
        return key.isprintable()

    check_access_token = check_nonce = check_client_key

    def validate_client_key(self, key, request):
        return key == "consumer"

    def validate_access_token(self, key, token, request):
        return token == "token-id"

    def validate_timestamp_and_nonce(self, key, timestamp, nonce, request, **tokens_):
        return once(f"oauth1 {nonce}")

    def validate_realms(self, key, token, request, uri=None, realms=None):
        return True

    def get_client_secret(self, key, request):
        return SECRET

    def get_access_token_secret(self, key, token, request):
        return PIN


class Clients(OAuth2Validator):
    def authenticate_client(self, request):
        request.client = request
        header = (request.headers.get("Authorization") or "").removeprefix("Basic ")
        given = base64.b64decode(header).decode().split(":") if header else [request.client_id, request.client_secret]
        return given == ["client-1", SECRET]

    def validate_grant_type(self, client_id, grant_type, client, request):
        return grant_type == "client_credentials"

    def get_default_scopes(self, client_id, request):
        return ["read"]

    def validate_scopes(self, client_id, scopes, client, request):
        return True

    def save_bearer_token(self, token, request):
        tokens.add(token["access_token"])


signatures = ResourceEndpoint(Signatures())
grants = BackendApplicationServer(Clients())


def once(nonce):
    is_new = nonce not in seen_nonces
    seen_nonces.add(nonce)
    return is_new


def issue():
    token = secrets.token_hex(16)
    tokens.add(token)
    return token


def is_username_token(header):
    fields = dict(re.findall(r'(\w+)="([^"]*)"', header))
    if not header.startswith("UsernameToken ") or fields.get("Username") != "ada":
        return False
    nonce = base64.b64decode(fields["Nonce"])
    digest = hashlib.sha1(nonce + fields["Created"].encode() + PIN.encode()).digest()
    return once(f"wsse {fields['Nonce']}") and base64.b64encode(digest).decode() == fields["PasswordDigest"]


class Acme(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = urlsplit(self.path).path
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if path.startswith("/signed"):
            uri = f"http://{self.headers['Host']}{self.path}"
            allowed, _ = signatures.validate_protected_resource_request(
                uri, self.command, self.body().decode(), dict(self.headers)
            )
        elif path == "/wsse":
            allowed = is_username_token(self.headers.get("X-WSSE", ""))
        elif path == "/jwt":
            try:
                header = jwt.get_unverified_header(bearer)
                claims = jwt.decode(bearer, JWT_KEY, algorithms=["HS256"], audience="/api/")
                allowed = header["kid"] == "key-1" and claims["exp"] - claims["iat"] == 300
            except jwt.InvalidTokenError:
                allowed = False
        elif path == "/bill":
            allowed = self.headers.get("sessionid") in tokens and self.headers.get("devkey") == "dev-1"
        else:
            allowed = bearer in tokens
        self.answer(200 if allowed else 401, {"ok": allowed})

    do_PUT = do_GET

    def do_POST(self):
        body = self.body().decode()
        path = urlsplit(self.path).path
        if path.startswith("/signed"):
            return self.do_signed(body)
        if path == "/token":
            login = json.loads(body)["login"]
            if login["pin"] == "html":
                return self.answer(200, "<!doctype html><p>Welcome")
            if login["pin"] == "away":
                return self.answer(503, "down for maintenance")
            return self.token(login["pin"] == PIN, "a wrong pin")
        if path == "/renew":
            return self.token(parse_qs(body).get("refresh_token") == ["refresh-1"], "an unknown refresh token")
        if path == "/assertion":
            try:
                jwt.decode(parse_qs(body)["assertion"][0], JWT_KEY, algorithms=["HS256"], audience="/api/")
                return self.token(True, "")
            except jwt.InvalidTokenError:
                return self.token(False, "a wrong assertion")
        if path == "/login":
            login = json.loads(body)
            expected = {"username": "ada", "password": PIN, "organizationId": "org-1", "devKey": "dev-1"}
            return self.answer(200, {"sessionId": issue(), "userId": "user-1"}) if login == expected else self.answer(401, {"code": "BDC_1101", "message": "invalid login"})
        if path == "/grant":
            headers, text, status = grants.create_token_response(self.path, "POST", body, dict(self.headers))
            return self.answer(status, json.loads(text))
        return self.answer(404, {})

    def do_signed(self, body):
        uri = f"http://{self.headers['Host']}{self.path}"
        allowed, _ = signatures.validate_protected_resource_request(uri, "POST", body, dict(self.headers))
        self.answer(200 if allowed else 401, {"ok": allowed})

    def token(self, allowed, why):
        if allowed:
            self.answer(200, {"data": {"token": issue(), "refresh": "refresh-1", "seconds": 3600}})
        else:
            self.answer(401, {"error": "invalid_grant", "error_description": why})

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status, content):
        is_text = isinstance(content, str)
        payload = (content if is_text else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if is_text else "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, form, *values):
        print(f"{self.command} {urlsplit(self.path).path} {values[1]}", flush=True)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Acme).serve_forever()
