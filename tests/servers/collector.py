"""A trace collector: accepts OTLP over HTTP as protobuf, and returns all received spans at GET /spans."""

import gzip
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

SPANS = []


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path != "/v1/traces" or self.headers["Content-Type"] != "application/x-protobuf":
            return self.answer(400, "text/plain", b"this is not OTLP")
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = MessageToDict(resource.resource)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    received = MessageToDict(span)
                    # As hexadecimal text, because the JSON format would be base64.
                    received["traceId"], received["spanId"] = span.trace_id.hex(), span.span_id.hex()
                    received["parentSpanId"] = span.parent_span_id.hex()
                    SPANS.append({"resource": about, "span": received})
        self.answer(200, "application/x-protobuf", ExportTraceServiceResponse().SerializeToString())

    def do_GET(self):
        self.answer(200, "application/json", json.dumps(SPANS).encode())

    def answer(self, status, content_type, body):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Collector).serve_forever()
