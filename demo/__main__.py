"""`python -m demo`: serve the scripted model until it is told to stop."""

import argparse
import asyncio
import signal

from demo import model


async def serve(port: int, pace_seconds: float) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with model.serving(port, pace_seconds=pace_seconds) as url:
        print(f"Scripted model: {url}", flush=True)  # noqa: T201 - what this program is asked for
        await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo", description="Serve the scripted model on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--pace", type=float, default=0.0, metavar="SECONDS", help="pause before each streamed piece")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.pace))


if __name__ == "__main__":
    main()
