"""Makes a GET over HTTP/3 with aioquic. Keeps the session and the address token in files.

Usage: get_by_aioquic.py ADDRESS PORT NAME PATH TRUST STATE KEYS [resume] [early] [token]
"""

import asyncio
import os
import pickle
import ssl
import sys

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

# How long after the response the session and the token may arrive, in seconds.
TICKET_TIMEOUT = 3.0


class Client(QuicConnectionProtocol):
    def __init__(self, quic):
        super().__init__(quic)
        self.http = H3Connection(quic)
        self.status = None
        self.done = asyncio.get_running_loop().create_future()

    def get(self, name, path):
        stream = self._quic.get_next_available_stream_id()
        head = [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":authority", name.encode()),
            (b":path", path.encode()),
        ]
        self.http.send_headers(stream, head, end_stream=True)

    def quic_event_received(self, event):
        for http_event in self.http.handle_event(event):
            if isinstance(http_event, HeadersReceived):
                self.status = dict(http_event.headers).get(b":status")
            if isinstance(http_event, (HeadersReceived, DataReceived)):
                if http_event.stream_ended and not self.done.done():
                    self.done.set_result(None)


def replace(path, content):
    with open(path + ".new", "wb") as file:
        file.write(content)
    os.replace(path + ".new", path)


async def main(address, port, name, path, trust, state, keys, *flags):
    session, token = os.path.join(state, "session"), os.path.join(state, "token")
    received = {"session": asyncio.Event(), "token": asyncio.Event()}

    def ticket(ticket):
        replace(session, pickle.dumps(ticket))
        received["session"].set()

    def new_token(bytes):
        replace(token, bytes)
        received["token"].set()

    with open(keys, "a") as log:
        configuration = QuicConfiguration(
            alpn_protocols=H3_ALPN,
            cafile=trust,
            is_client=True,
            secrets_log_file=log,
            server_name=name,
            verify_mode=ssl.CERT_REQUIRED,
        )
        # The default of 0.1 s causes retransmissions on long paths.
        configuration.initial_rtt = 0.5
        if "resume" in flags:
            with open(session, "rb") as file:
                configuration.session_ticket = pickle.load(file)
        if "token" in flags:
            with open(token, "rb") as file:
                configuration.token = file.read()
        # Sessions and tokens are used once.
        for used, flag in ((session, "resume"), (token, "token")):
            if flag in flags:
                os.remove(used)
        quic = QuicConnection(
            configuration=configuration,
            session_ticket_handler=ticket,
            token_handler=new_token,
        )
        loop = asyncio.get_running_loop()
        transport, client = await loop.create_datagram_endpoint(
            lambda: Client(quic), local_addr=("0.0.0.0", 0)
        )
        early = "early" in flags
        client.connect((address, int(port)), transmit=not early)
        if not early:
            await client.wait_connected()
        client.get(name, path)
        client.transmit()
        # With a token the request does not fit into the first datagram. A second call sends the rest.
        client.transmit()
        await client.done
        waits = [event.wait() for event in received.values()]
        try:
            await asyncio.wait_for(asyncio.gather(*waits), TICKET_TIMEOUT)
        except asyncio.TimeoutError:
            pass
        client.close()
        await client.wait_closed()
        transport.close()
    return 0 if client.status == b"200" else 1


sys.exit(asyncio.run(main(*sys.argv[1:])))
