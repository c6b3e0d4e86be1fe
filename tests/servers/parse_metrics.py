"""Reads what Prometheus would fetch on standard input, with Prometheus's own client library, and writes the samples
as JSON: [name, labels, value]. Fails if it is not in the format."""

import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families

families = list(text_string_to_metric_families(sys.stdin.read()))
undocumented = [family.name for family in families if not family.documentation]
if undocumented:
    sys.exit(f"not described: {undocumented}")
json.dump([[s.name, s.labels, s.value] for family in families for s in family.samples], sys.stdout)
