"""An HTTP/3 server on aioquic with early data, and its own witness: it counts requests by their query.

Usage: aioquic_server.py --cert FILE --key FILE --port PORT
"""

import argparse
import asyncio
import json
from collections import Counter

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated

executions = Counter()
# A ticket is used once, as in aioquic's own example of a server.
tickets = {}


class Connection(QuicConnectionProtocol):
    http = None

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if self.http is None:
            return
        for http_event in self.http.handle_event(event):
            if isinstance(http_event, HeadersReceived):
                self.respond(http_event)

    def respond(self, request):
        target = dict(request.headers).get(b":path", b"").decode()
        query = target.partition("?")[2]
        executions[query] += 1
        body = json.dumps({"executions": executions[query], "early_data": None}).encode()
        head = [(b":status", b"200"), (b"content-length", str(len(body)).encode())]
        self.http.send_headers(request.stream_id, head)
        self.http.send_data(request.stream_id, body, end_stream=True)
        self.transmit()


async def main():
    parser = argparse.ArgumentParser()
    for flag in ("--cert", "--key", "--port"):
        parser.add_argument(flag, required=True)
    flags = parser.parse_args()
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=False)
    configuration.load_cert_chain(flags.cert, flags.key)
    await serve(
        "127.0.0.1",
        int(flags.port),
        configuration=configuration,
        create_protocol=Connection,
        session_ticket_fetcher=lambda label: tickets.pop(label, None),
        session_ticket_handler=lambda ticket: tickets.update({ticket.ticket: ticket}),
    )
    await asyncio.Event().wait()


asyncio.run(main())
