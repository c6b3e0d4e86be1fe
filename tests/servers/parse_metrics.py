"""Parses metrics from standard input with Prometheus's own client library, and writes the samples as JSON:
[name, labels, value]. Fails if the input is not valid or a metric has no description."""

import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families

families = list(text_string_to_metric_families(sys.stdin.read()))
undocumented = [family.name for family in families if not family.documentation]
if undocumented:
    sys.exit(f"metrics without a description: {undocumented}")
json.dump([[s.name, s.labels, s.value] for family in families for s in family.samples], sys.stdout)
