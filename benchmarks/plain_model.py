"""The upstream and the peer: streams as many bytes of events as a header asks for, at once, over kept connections."""

import asyncio
import re

FIRST = (
    b'event: message_start\ndata: {"type":"message_start","message":{"model":"claude-sonnet-4-5",'
    b'"usage":{"input_tokens":10,"output_tokens":1}}}\n\n'
)
PIECE = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"' + b"x" * 3_900 + b'"}}\n\n'
LAST = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not reader.at_eof():
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
        except asyncio.IncompleteReadError:
            break
        await reader.readexactly(_number(rb"content-length: (\d+)", head))
        writer.write(HEAD + _chunk(FIRST))
        for _ in range(_number(rb"x-answer-bytes: (\d+)", head) // len(PIECE)):
            writer.write(_chunk(PIECE))
            await writer.drain()
        writer.write(_chunk(LAST) + b"0\r\n\r\n")
        await writer.drain()
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def _number(pattern: bytes, head: bytes) -> int:
    found = re.search(pattern, head)
    return int(found[1]) if found else 0


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


if __name__ == "__main__":
    asyncio.run(main())
