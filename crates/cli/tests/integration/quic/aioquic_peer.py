"""An HTTP/3 client and server on aioquic: a peer of the tests.

Reports what happened as JSON on standard output, one line each. aioquic is found in PYTHONPATH.
"""

import argparse
import asyncio
import contextlib
import json
import pathlib
import pickle
import socket
import ssl

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StreamReset
from aioquic.tls import CipherSuite, Epoch


def say(**facts):
    print(json.dumps(facts), flush=True)


class Client(QuicConnectionProtocol):
    """One connection; responses are collected by stream."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.responses = {}
        self.waiting = {}
        self.handshake = None
        self.complete = asyncio.Event()
        self.ended = None
        self.stop = None
        self.resets = []

    def send(self, method, authority, path, body):
        stream = self._quic.get_next_available_stream_id()
        fields = [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":authority", authority.encode()),
            (b":path", path.encode()),
        ]
        if body:
            fields.append((b"content-length", str(len(body)).encode()))
        self.http.send_headers(stream, fields, end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        self.responses[stream] = {"status": None, "fields": {}, "body": b""}
        self.waiting[stream] = self._loop.create_future()
        return stream

    def quic_event_received(self, event):
        if isinstance(event, HandshakeCompleted):
            self.handshake = event
            self.complete.set()
        elif isinstance(event, ConnectionTerminated):
            self.ended = event
            self.complete.set()
            for waiter in self.waiting.values():
                if not waiter.done():
                    waiter.set_result(None)
        elif isinstance(event, StreamReset):
            self.resets.append(event.error_code)
            self.waiting[event.stream_id].set_result(None)
        for event in self.http.handle_event(event):
            response = self.responses.get(getattr(event, "stream_id", None))
            if response is None:
                continue
            if isinstance(event, HeadersReceived):
                if self.stop is not None:
                    self._quic.stop_stream(event.stream_id, self.stop)
                fields = {name.decode(): value.decode() for name, value in event.headers}
                # The last head counts: those before it are interim responses.
                response["status"] = int(fields.pop(":status", 0)) or response["status"]
                response["fields"].update(fields)
            elif isinstance(event, DataReceived):
                response["body"] += event.data
            if event.stream_ended and not self.waiting[event.stream_id].done():
                self.waiting[event.stream_id].set_result(None)

    async def response(self, stream):
        await self.waiting[stream]
        response = self.responses[stream]
        response["body"] = response["body"].decode(errors="replace")
        return response


def load(path, otherwise):
    return path.read_bytes() if path and path.exists() else otherwise


async def client(args):
    quic = QuicConfiguration(
        is_client=True,
        alpn_protocols=H3_ALPN + [f"padding-{number:04}" for number in range(args.big_hello)],
        server_name=args.host,
        quantum_readiness_test=args.quantum,
        idle_timeout=20.0,
    )
    quic.load_verify_locations(args.cacert)
    quic.token = load(args.token, b"")
    if args.chacha:
        quic.cipher_suites = [CipherSuite.CHACHA20_POLY1305_SHA256]
    if args.begin_with:
        quic.original_version = int(args.begin_with, 16)
    if args.stop is not None:
        # The server has more to send than it is allowed to.
        quic.max_stream_data = 10_000
    if args.keylog:
        quic.secrets_log_file = args.keylog.open("a")
    if args.ticket and args.ticket.exists():
        quic.session_ticket = pickle.loads(args.ticket.read_bytes())
    tickets, tokens = [], []
    connection = QuicConnection(
        configuration=quic, session_ticket_handler=tickets.append, token_handler=tokens.append
    )
    loop = asyncio.get_running_loop()
    protocol = Client(connection)
    protocol.stop = args.stop
    transport = await endpoint(loop, protocol)
    # Sends nothing before there is a request for the first flight.
    protocol.connect((args.address, args.port), transmit=not args.early)
    if not args.early:
        await protocol.complete.wait()
    authority = f"{args.host}:{args.port}"
    body = b"x" * args.body
    streams = [protocol.send(args.method, authority, path, body) for path in args.path]
    protocol.transmit()
    if args.early:
        # Data that does not fit into a datagram with token and ticket is sent by another call.
        protocol.transmit()
    responses = [await protocol.response(stream) for stream in streams]
    ports = [transport.get_extra_info("sockname")[1]]
    if not protocol.ended:
        # An early response may arrive before the handshake ends, after which tickets arrive.
        await protocol.complete.wait()
        with contextlib.suppress(ConnectionError):
            await protocol.ping()
    if args.key_update or args.migrate:
        if args.key_update:
            protocol.request_key_update()
        if args.migrate:
            protocol.change_connection_id()
            old, transport = transport, await endpoint(loop, protocol)
            ports.append(transport.get_extra_info("sockname")[1])
            old.close()
        stream = protocol.send(args.method, authority, args.then, body)
        protocol.transmit()
        responses.append(await protocol.response(stream))
    if args.linger:
        await asyncio.wait_for(protocol.wait_closed(), 20)
    handshake, ended = protocol.handshake, protocol.ended
    one_rtt = connection._cryptos[Epoch.ONE_RTT]
    say(
        resumed=handshake and handshake.session_resumed,
        early=handshake and handshake.early_data_accepted,
        alpn=handshake and handshake.alpn_protocol,
        version=connection._version,
        retried=connection._retry_count > 0,
        key_phase=[one_rtt.send.key_phase, one_rtt.recv.key_phase],
        ports=ports,
        tickets=len(tickets),
        tokens=len(tokens),
        responses=responses,
        resets=protocol.resets,
        ended=ended and {"code": ended.error_code, "reason": ended.reason_phrase},
    )
    if args.ticket and tickets:
        args.ticket.write_bytes(pickle.dumps(tickets[-1]))
    if args.token and tokens:
        args.token.write_bytes(tokens[-1])
    if not ended:
        protocol.close()
        await protocol.wait_closed()
    transport.close()


async def endpoint(loop, protocol):
    transport, _ = await loop.create_datagram_endpoint(
        lambda: protocol, local_addr=("127.0.0.1", 0), family=socket.AF_INET
    )
    return transport


class Server(QuicConnectionProtocol):
    """Responds to each request with a description of it, and reports when it arrived."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = None
        self.complete = False
        self.requests = {}
        self.addresses = set()

    def datagram_received(self, data, addr):
        self.addresses.add(addr)
        super().datagram_received(data, addr)

    def quic_event_received(self, event):
        if isinstance(event, HandshakeCompleted):
            self.complete = True
            say(
                handshake=True,
                resumed=event.session_resumed,
                early=event.early_data_accepted,
                version=self._quic._version,
                retried=self._quic._retry_source_connection_id is not None,
            )
        if isinstance(event, ConnectionTerminated):
            phase = self._quic._cryptos[Epoch.ONE_RTT].recv.key_phase
            path = self._quic._network_paths[0]
            say(
                ended=event.error_code,
                key_phase=phase,
                validated=path.is_validated,
                addresses=len(self.addresses),
            )
        if self.http is None:
            self.http = H3Connection(self._quic)
        for event in self.http.handle_event(event):
            if isinstance(event, HeadersReceived):
                fields = {name.decode(): value.decode() for name, value in event.headers}
                path = self._quic._network_paths[0]
                self.requests[event.stream_id] = {
                    "method": fields[":method"],
                    "path": fields[":path"],
                    "body": 0,
                    "early": not self.complete,
                    "from": path.addr[1],
                    "key_phase": self._quic._cryptos[Epoch.ONE_RTT].recv.key_phase,
                }
            elif isinstance(event, DataReceived):
                self.requests[event.stream_id]["body"] += len(event.data)
            if getattr(event, "stream_ended", False) and event.stream_id in self.requests:
                request = self.requests.pop(event.stream_id)
                say(request=request)
                self.response(event.stream_id, request)

    def response(self, stream, request):
        body = f"{request['method']} {request['path']} {request['body']}\n".encode()
        if request["path"].startswith("/long/"):
            body = b"x" * int(request["path"][6:])
        fields = [(b":status", b"200"), (b"content-length", str(len(body)).encode())]
        self.http.send_headers(stream, fields)
        self.http.send_data(stream, body, end_stream=True)
        self.transmit()


async def server(args):
    quic = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN, idle_timeout=20.0)
    quic.load_cert_chain(args.cert, args.key)
    if args.versions:
        quic.supported_versions = [int(version, 16) for version in args.versions.split(",")]
    if args.chacha:
        quic.cipher_suites = [CipherSuite.CHACHA20_POLY1305_SHA256]
    tickets = {}
    if args.tickets and args.tickets.exists():
        tickets = pickle.loads(args.tickets.read_bytes())

    def keep(ticket):
        tickets[ticket.ticket] = ticket
        if args.tickets:
            args.tickets.write_bytes(pickle.dumps(tickets))

    running = await serve(
        "127.0.0.1",
        0,
        configuration=quic,
        create_protocol=Server,
        session_ticket_fetcher=lambda label: tickets.pop(label, None),
        session_ticket_handler=keep,
        retry=args.retry,
    )
    say(port=running._transport.get_extra_info("sockname")[1])
    await asyncio.Event().wait()


def arguments():
    path = pathlib.Path
    parser = argparse.ArgumentParser()
    roles = parser.add_subparsers(dest="role", required=True)
    role = roles.add_parser("client")
    role.add_argument("--host", default="localhost")
    role.add_argument("--address", default="127.0.0.1")
    role.add_argument("--port", type=int, required=True)
    role.add_argument("--cacert", required=True)
    role.add_argument("--method", default="GET")
    role.add_argument("--body", type=int, default=0, help="length of each request's body")
    role.add_argument("--ticket", type=path, help="a session to resume, and where it is kept")
    role.add_argument("--token", type=path, help="an address token, and where it is kept")
    role.add_argument("--keylog", type=path)
    role.add_argument("--early", action="store_true", help="ask before the handshake")
    role.add_argument("--chacha", action="store_true", help="ChaCha20 alone")
    role.add_argument("--begin-with", help="version of the first packet, in hexadecimal")
    role.add_argument("--big-hello", type=int, default=0, help="so many more protocols in ALPN")
    role.add_argument("--quantum", action="store_true", help="a parameter of 1,200 bytes")
    role.add_argument("--key-update", action="store_true", help="between the paths and `then`")
    role.add_argument("--migrate", action="store_true", help="between the paths and `then`")
    role.add_argument("--then", default="/index.html?then")
    role.add_argument("--stop", type=int, help="code to stop each response with, at its head")
    role.add_argument("--linger", action="store_true", help="until the server closes")
    role.add_argument("path", nargs="+")
    role = roles.add_parser("server")
    role.add_argument("--cert", required=True)
    role.add_argument("--key", required=True)
    role.add_argument("--retry", action="store_true")
    role.add_argument("--chacha", action="store_true", help="ChaCha20 alone")
    role.add_argument("--versions", help="versions, in hexadecimal, separated by commas")
    role.add_argument("--tickets", type=path, help="where tickets outlive the process")
    return parser.parse_args()


if __name__ == "__main__":
    args = arguments()
    asyncio.run(client(args) if args.role == "client" else server(args))
