"""Starts the worker: reads its orders, works, and stays until the server has the whole story."""

import asyncio
import os
import signal
import sys

import httpx

from worker import orders
from worker.delivery import Delivery
from worker.inbox import Inbox
from worker.run import Run
from worker.server import TIMEOUT_SECONDS, Over, Server
from worker.spool import Spool

LEAVE_SECONDS = 8.0  # for the last words of a worker that was asked to leave
OVER_CODE = 3


async def main(told: orders.Orders) -> int:
    leave, code = asyncio.Event(), 0
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    spool, inbox = Spool(told.state / "spool"), Inbox()
    async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as http:
        server = Server(told.callback_url, told.token, http)
        delivery = Delivery(spool, server, inbox.hear, heartbeat_seconds=told.heartbeat_seconds)
        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(delivery.run())
                background = [group.create_task(delivery.beat()), group.create_task(inbox.listen(server))]
                if spool.report is None:
                    spool.finish(await Run(told, spool, inbox, delivery).attempt(leave))
                left = asyncio.create_task(leave.wait())
                await asyncio.wait({sending, left}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({sending}, timeout=LEAVE_SECONDS)
                for task in (sending, left, *background):
                    task.cancel()
        except* Over as over:
            sys.stderr.write(f"this attempt is over: {over.exceptions[0]}\n")
            code = OVER_CODE
    return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(orders.read(os.environ))))
