"""Starts the worker: reads its orders, works, and stays until the server has the whole story."""

import asyncio
import os
import signal
import sys
import traceback

import httpx

from worker.delivery import Delivery, Inbox
from worker.orders import Orders
from worker.run import Run
from worker.server import TIMEOUT_SECONDS, Over, Server, insist
from worker.spool import Spool

LEAVE_SECONDS = 8.0  # for the last words of a worker that was asked to leave


async def main(orders: Orders) -> None:
    leave, spool, inbox = asyncio.Event(), Spool(orders.state / "spool"), Inbox()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as http, asyncio.TaskGroup() as group:
        server = Server(orders.callback_url, orders.token, http)
        delivery = Delivery(spool, server, inbox)
        sending = group.create_task(delivery.run())
        loops = delivery.beat(orders.heartbeat_seconds), insist(inbox.listen, server), leave.wait()
        others = [group.create_task(loop) for loop in loops]
        if spool.report is None:
            spool.finish(await Run(orders, spool, inbox, delivery).attempt(leave))
        await asyncio.wait({sending, others[-1]}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({sending}, timeout=LEAVE_SECONDS)
        for task in (sending, *others):
            task.cancel()


if __name__ == "__main__":
    try:
        asyncio.run(main(Orders(os.environ)))
    except Exception as why:  # noqa: BLE001 - the edge of the process; of its log the last line is what people see
        while isinstance(why, ExceptionGroup):
            why = why.exceptions[0]
        if not isinstance(why, Over):
            traceback.print_exc()
        sys.stderr.write(" ".join(f"{type(why).__name__}: {why}".split()) + "\n")
        sys.exit(3 if isinstance(why, Over) else 1)
