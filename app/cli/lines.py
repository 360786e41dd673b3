"""Connections: Uvicorn's, with a word more to what runs above about peers that keep up, lag behind, or do not read."""

from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from schema.socket import SEND_NOW
from schema.sse import ABORT

TEXT = b"\x81"  # the first byte of a frame that holds a whole text


class HttpLine(HttpToolsProtocol):
    """It can be cut off although its client does not read."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: cast("dict[object, object]", {"abort": self.transport.abort})}


class WebSocketLine(WebSocketsSansIOProtocol):
    """It can send a text at once; and it holds less while nothing happens."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["extensions"][SEND_NOW] = cast("dict[object, object]", {"send": self.send_now})

    def start_keepalive(self) -> None:
        """Called once, as soon as the handshake is over; five kilobytes of headers are only there for that."""
        super().start_keepalive()
        del self.request, self.response

    def send_now(self, text: bytes) -> bool:
        """Write it, without a task's turn and a message for each; False where that has to wait, or cannot be."""
        if not self.writable.is_set() or not self.handshake_complete or self.close_sent or self.transport.is_closing():
            return False
        self.transport.write(TEXT + _size(len(text)) + text)
        return True

    def keepalive_timeout(self) -> None:
        """Cut off a peer that answers no ping, like a network that is gone.

        Uvicorn's own 1011 makes clients of graphql-ws give up for good, and waits until somebody reads it.
        """
        self.transport.abort()


def _size(length: int) -> bytes:
    """As RFC 6455 writes it, where nothing is masked."""
    if length < 126:
        return length.to_bytes(1, "big")
    if length < 1 << 16:
        return b"\x7e" + length.to_bytes(2, "big")
    return b"\x7f" + length.to_bytes(8, "big")
