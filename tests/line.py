"""The line between a server and its sandboxes, which a test can cut: nothing comes through, and nobody is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

CHUNK = 64 << 10


class Line:
    """A TCP proxy on a port of its own. `target` is the server's port."""

    def __init__(self) -> None:
        self.address = ""
        self.target = 0
        self.lost = 0  # connections that were open in the cut
        self.dialled = 0  # connections so far
        self._whole = asyncio.Event()
        self._whole.set()
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """From now on whatever is sent falls silent, on old connections and on new ones."""
        self._whole.clear()

    def mend(self) -> None:
        """What was open has lost what was on its way, so it breaks; new connections pass."""
        self.lost += len(self._open)
        for writer in self._open:
            writer.transport.abort()
        self._whole.set()

    async def carry(self, inner: asyncio.StreamReader, answering: asyncio.StreamWriter) -> None:
        self._open.add(answering)
        self.dialled += 1
        try:
            await self._whole.wait()
            outer, asking = await asyncio.open_connection("127.0.0.1", self.target)
            self._open.add(asking)
            try:
                await asyncio.gather(self._pass(inner, asking), self._pass(outer, answering))
            finally:
                self._open.discard(asking)
                asking.close()
        except OSError:
            pass
        finally:
            self._open.discard(answering)
            answering.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._whole.wait()
            if writer.is_closing():  # it was sent into the cut
                return
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@contextlib.asynccontextmanager
async def laid() -> AsyncIterator[Line]:
    line = Line()
    server = await asyncio.start_server(line.carry, "127.0.0.1", 0)
    line.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        line.mend()
        server.close()
