"""An OAuth 1 provider for the tests: oauthlib checks every signature, nonce and timestamp.

    python oauth1.py PORT

There is one client, `consumer` with the secret `planted-consumer-secret`. /authorize redirects back with a verifier, or
with `denied` if the URL contains `deny=yes`. /me requires a token.
"""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from oauthlib.oauth1 import RequestValidator, WebApplicationServer

CLIENT, SECRET = "consumer", "planted-consumer-secret"


class Validator(RequestValidator):
    enforce_ssl = False
    client_key_length = (1, 64)
    request_token_length = access_token_length = verifier_length = nonce_length = (1, 128)
    dummy_client = dummy_request_token = dummy_access_token = "dummy"

    def __init__(self):
        self.nonces, self.request_tokens, self.access_tokens = set(), {}, {}

    @property
    def safe_characters(self):
        return super().safe_characters | set("-_.")

    def check_nonce(self, nonce):
        return 8 <= len(nonce) <= 128

    def validate_client_key(self, client_key, request):
        return client_key == CLIENT

    def get_client_secret(self, client_key, request):
        return SECRET

    def validate_timestamp_and_nonce(self, client_key, timestamp, nonce, request, request_token=None, access_token=None):
        known = (timestamp, nonce) in self.nonces
        self.nonces.add((timestamp, nonce))
        return not known

    def validate_redirect_uri(self, client_key, redirect_uri, request):
        return urlsplit(redirect_uri).path == "/oauth/callback"

    def get_default_realms(self, client_key, request):
        return []

    def get_realms(self, token, request):
        return []

    def validate_requested_realms(self, client_key, realms, request):
        return True

    def validate_realms(self, client_key, token, request, uri=None, realms=None):
        return True

    def save_request_token(self, token, request):
        self.request_tokens[token["oauth_token"]] = {
            "secret": token["oauth_token_secret"], "callback": request.redirect_uri, "verifier": None,
        }

    def verify_request_token(self, token, request):
        return token in self.request_tokens

    def validate_request_token(self, client_key, token, request):
        return token in self.request_tokens

    def get_request_token_secret(self, client_key, token, request):
        return self.request_tokens.get(token, {}).get("secret", "none")

    def get_redirect_uri(self, token, request):
        return self.request_tokens[token]["callback"]

    def save_verifier(self, token, verifier, request):
        self.request_tokens[token]["verifier"] = verifier["oauth_verifier"]

    def validate_verifier(self, client_key, token, verifier, request):
        return bool(verifier) and self.request_tokens.get(token, {}).get("verifier") == verifier

    def save_access_token(self, token, request):
        self.access_tokens[token["oauth_token"]] = token["oauth_token_secret"]

    def invalidate_request_token(self, client_key, request_token, request):
        del self.request_tokens[request_token]

    def validate_access_token(self, client_key, token, request):
        return token in self.access_tokens

    def get_access_token_secret(self, client_key, token, request):
        return self.access_tokens.get(token, "none")


VALIDATOR = Validator()
SERVER = WebApplicationServer(VALIDATOR)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.answer("POST")

    def do_GET(self):
        self.answer("GET")

    def answer(self, method):
        url = f"http://{self.headers['Host']}{self.path}"
        path, query = urlsplit(url).path, parse_qs(urlsplit(url).query)
        headers = {name: value for name, value in self.headers.items()}
        if path == "/request_token":
            self.send(*SERVER.create_request_token_response(url, method, None, headers))
        elif path == "/authorize":
            token = query["oauth_token"][0]
            if "deny" in query:
                callback = VALIDATOR.request_tokens[token]["callback"]
                self.send({"Location": f"{callback}&{urlencode({'denied': token})}"}, "", 302)
            else:
                self.send(*SERVER.create_authorization_response(url, "GET", None, headers, [], {}))
        elif path == "/access_token":
            self.send(*SERVER.create_access_token_response(url, method, None, headers))
        elif path == "/me":
            valid, request = SERVER.validate_protected_resource_request(url, method, None, headers, [])
            body = {"id": "ada", "method": request.signature_method} if valid else {"error": "unauthorized"}
            self.send({"Content-Type": "application/json"}, json.dumps(body), 200 if valid else 401)
        else:
            self.send({}, "", 404)

    def send(self, headers, body, status):
        body = (body or "").encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
