"""python3 -m unittest: tests the parts that need no host."""

import base64
import hashlib
import hmac
import time
import unittest

from syncline import verify_webhook

KEY = "whsec_" + base64.b64encode(b"a key for the test").decode()
BODY = b'{"type":"auth","connectionId":"ada"}'


def signed(body=BODY, timestamp=None):
    timestamp = timestamp or int(time.time())
    key = base64.b64decode(KEY.removeprefix("whsec_"))
    signature = base64.b64encode(hmac.digest(key, f"msg_1.{timestamp}.".encode() + body, hashlib.sha256)).decode()
    return {"webhook-id": "msg_1", "webhook-timestamp": str(timestamp), "webhook-signature": f"v1,{signature}"}


class VerifyWebhook(unittest.TestCase):
    def test_an_authentic_webhook_is_parsed(self):
        self.assertEqual(verify_webhook(KEY, signed(), BODY), {"type": "auth", "connectionId": "ada"})

    def test_one_of_two_signatures_is_enough(self):
        headers = signed()
        headers["webhook-signature"] = "v1,c29tZXRoaW5nIGVsc2U= " + headers["webhook-signature"]
        self.assertEqual(verify_webhook(KEY, headers, BODY)["type"], "auth")

    def test_a_changed_body_another_key_an_old_webhook_and_a_missing_signature_are_rejected(self):
        cases = [
            (KEY, signed(), BODY.replace(b"ada", b"eve")),
            ("whsec_AAAA", signed(), BODY),
            (KEY, signed(timestamp=int(time.time()) - 301), BODY),
            (KEY, {}, BODY),
        ]
        for key, headers, body in cases:
            with self.assertRaisesRegex(ValueError, "not authentic"):
                verify_webhook(key, headers, body)


if __name__ == "__main__":
    unittest.main()
