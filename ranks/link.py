"""A framed socket: bytes in, frames or reasons out. The shell around `ranks.frames`.

Must never block without a bound, and never decide what a frame means. Source: DESIGN section 4.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from ranks.frames import BrokenFrame, Frame, FrameDecoder, Header, Kind, encode_frame
from ranks.round_plan import ControlMessage, MessageError, decode_message, encode_message

__all__ = ["ControlLink", "FrameFilter", "FramedSocket", "LinkClosed", "connect", "listening_socket"]

_READ_BYTES = 1 << 16
FrameFilter = Callable[[Header, bytes], bytes | None]


class LinkClosed(ConnectionError):
    """The other end is gone."""


def connect(host: str, port: int, timeout_ms: int) -> socket.socket:
    """Return a connected TCP socket without send delay. Raises LinkClosed with one sentence."""
    try:
        return socket.create_connection((host, port), timeout_ms / 1000)
    except OSError as error:
        raise LinkClosed(f"no connection to {host}:{port} within {timeout_ms} ms: {error}") from error


class FramedSocket:
    """One connected stream socket that speaks frames.

    `outgoing` may change or drop (None) the wire bytes of a frame; it is how link faults are injected.
    """

    def __init__(self, connected: socket.socket, outgoing: FrameFilter | None = None) -> None:
        """Take over a connected socket."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(True)
        connected.settimeout(None)
        self.socket = connected
        self.bytes_sent = 0
        self._decoder = FrameDecoder()
        self._outgoing = outgoing

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self.socket.fileno()

    def send(self, frames: list[tuple[Header, bytes]]) -> None:
        """Send frames in one write. Raises LinkClosed."""
        wire = []
        for header, body in frames:
            data: bytes | None = encode_frame(header, body)
            if self._outgoing is not None and data is not None:
                data = self._outgoing(header, data)
            if data is not None:
                wire.append(data)
        joined = b"".join(wire)
        try:
            self.socket.sendall(joined)
        except OSError as error:
            raise LinkClosed(f"peer did not take {len(joined)} bytes: {error}") from error
        self.bytes_sent += len(joined)

    def receive(self) -> list[Frame | BrokenFrame]:
        """Read what is there and return what it completes, nothing when nothing is there. Raises LinkClosed.

        Never waits: what a poll saw may have been read meanwhile, by a recovery inside a loop over several links.
        """
        try:
            data = self.socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkClosed(f"read failed: {error}") from error
        if not data:
            raise LinkClosed("the other end closed the connection")
        return self._decoder.feed(data)

    def readable(self, timeout_ms: float) -> bool:
        """Return whether bytes or an end of stream wait, after at most timeout_ms."""
        return bool(select.select([self.socket], [], [], timeout_ms / 1000)[0])

    def close(self) -> None:
        """Close the socket; a second close is harmless."""
        self.socket.close()


class ControlLink:
    """Typed control messages over a framed socket between the driver and one rank."""

    def __init__(self, framed: FramedSocket, source: int, incarnation: int) -> None:
        """Speak as `source` (0, 1, or 2 for the driver)."""
        self.framed = framed
        self._source = source
        self._incarnation = incarnation
        self._sequence = 0

    def send(self, message: ControlMessage) -> None:
        """Send one message. Raises LinkClosed."""
        self._sequence += 1
        header = Header.outside_rounds(Kind.CONTROL, self._source, self._incarnation, sequence=self._sequence)
        self.framed.send([(header, encode_message(message))])

    def receive(self) -> list[ControlMessage]:
        """Return the messages that have arrived; call when readable. Raises LinkClosed, also for damage.

        Control bytes that are not a message end the link: a control stream that lies cannot be repaired.
        """
        messages = []
        for item in self.framed.receive():
            if not isinstance(item, Frame) or item.header.kind is not Kind.CONTROL:
                raise LinkClosed("the control link carried something that is no control message")
            try:
                messages.append(decode_message(item.body))
            except MessageError as error:
                raise LinkClosed(str(error)) from error
        return messages

    def close(self) -> None:
        """Close the link."""
        self.framed.close()


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens on host:port (0 = any free port). Raises OSError when the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener
