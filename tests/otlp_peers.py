"""Receivers of OTLP that are not ours: built on opentelemetry-proto, grpc and http.server, for both protocols."""

import gzip
import queue
import threading
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc


class Peer:
    """What came: requests of each signal in order, with their headers; `refusals` are answered first, then all is taken."""

    def __init__(self, refusals):
        self.refusals = list(refusals)
        self.asked, self.came = [], threading.Event()
        self.traces, self.metrics = queue.Queue(), queue.Queue()
        self.url = ""
        self.rejects = 0

    def spans(self, wanted):
        """The first `wanted` spans that came, as (resource, span), and their scopes' schema."""
        found = []
        while len(found) < wanted:
            request = self.traces.get(timeout=20)
            found += [
                (group.resource, scope.schema_url, span)
                for group in request.resource_spans
                for scope in group.scope_spans
                for span in scope.spans
            ]
        return found


def attributes(pairs):
    """`KeyValue`s as a dictionary."""
    made = {}
    for pair in pairs:
        form = pair.value.WhichOneof("value")
        made[pair.key] = getattr(pair.value, form)
    return made


@contextmanager
def http_peer(*refusals):
    """Over HTTP; a refusal is (status, headers)."""
    peer = Peer(refusals)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            peer.asked.append(dict(self.headers.items()))
            peer.came.set()
            status, headers, answer = 200, {}, b""
            if peer.refusals:
                status, headers = peer.refusals.pop(0)
                answer = b"not now"
            else:
                answer = self.take(
                    gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
                )
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def take(self, body):
            if self.path == "/v1/traces":
                peer.traces.put(traces.ExportTraceServiceRequest.FromString(body))
                answer = traces.ExportTraceServiceResponse()
                answer.partial_success.rejected_spans = peer.rejects
                return answer.SerializeToString()
            assert self.path == "/v1/metrics", self.path
            peer.metrics.put(metrics.ExportMetricsServiceRequest.FromString(body))
            return b""

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    peer.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield peer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Traces(traces_grpc.TraceServiceServicer):
    def __init__(self, peer):
        self.peer = peer

    def Export(self, request, context):
        self.peer.asked.append(dict(context.invocation_metadata()))
        if self.peer.refusals:
            code, delay_s = self.peer.refusals.pop(0)
            if delay_s:
                info = RetryInfo()
                info.retry_delay.nanos = int(delay_s * 1e9)
                detail = Any()
                detail.Pack(info)
                status = Status(code=code.value[0], message="not now", details=[detail])
                context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(code, "not now")
        self.peer.traces.put(request)
        answer = traces.ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = self.peer.rejects
        return answer


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, peer):
        self.peer = peer

    def Export(self, request, context):
        self.peer.metrics.put(request)
        return metrics.ExportMetricsServiceResponse()


@contextmanager
def grpc_peer(*refusals):
    """Over gRPC; a refusal is (code, seconds to wait or 0)."""
    peer = Peer(refusals)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    traces_grpc.add_TraceServiceServicer_to_server(_Traces(peer), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(peer), server)
    peer.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield peer
    finally:
        server.stop(None).wait()
