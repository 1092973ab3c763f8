"""Reads pages of metrics with the parsers of Prometheus' Python client: `metrics.py FOLDER`.

Its OpenMetrics parser refuses what others let pass: a family that comes back, buckets out of order, a counter
without its suffix, a histogram that does not add up.
"""

import pathlib
import sys

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

KNOWN = {"openmetrics-text": openmetrics.text_string_to_metric_families, "plain": parser.text_string_to_metric_families}


def main() -> int:
    pages = [path for path in sorted(pathlib.Path(sys.argv[1]).iterdir()) if path.suffix[1:] in KNOWN]
    failed = False
    for path in pages:
        try:
            families = list(KNOWN[path.suffix[1:]](path.read_text()))
        except ValueError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            failed = True
            continue
        print(f"{path.name}: {len(families)} families, {sum(len(f.samples) for f in families)} samples")
    return 1 if failed or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
