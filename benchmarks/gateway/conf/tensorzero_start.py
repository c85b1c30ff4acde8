"""Starts TensorZero's HTTP gateway out of its Python wheel and writes the port it chose; ends with its parent's signal."""

import pathlib
import sys
import threading
import urllib.parse

from tensorzero import _start_http_gateway

gateway = _start_http_gateway(
    config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
)
port = pathlib.Path(sys.argv[2])
port.with_suffix(".new").write_text(str(urllib.parse.urlsplit(gateway.base_url).port))
port.with_suffix(".new").rename(port)
threading.Event().wait()
